"""FlashInfer's PCIe collectives through classes with the signatures and rules of its sources."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from kernels.collectives.adapters.flashinfer import FORMS, installed, unmet_flashinfer, unmet_form
from kernels.collectives.adapters.workspaces import Workspaces, open_process_group
from kernels.collectives.choice import Question, choose
from kernels.collectives.errors import CollectiveError
from kernels.collectives.fabric import DEVICE_TRANSPORTS, unmet_transport
from kernels.collectives.group import Group
from kernels.errors import ImplUnavailable

SLOT_BYTES = 1024
CPU = torch.device("cpu")
needs_absence = pytest.mark.skipif(bool(installed()), reason="FlashInfer is installed here")


@pytest.fixture
def on_ranks(comm, make_meeting):
    """Run `body(workspaces, rank)` on ranks: what each returns, and the shapes of all calls."""
    return lambda size, body: run_ranks(comm, make_meeting(size), size, body)


def run_ranks(comm, meeting, size, body):
    found, closed = {}, []

    def run(rank):
        workspaces = Workspaces(
            comm, list(FORMS), Group(rank=rank, size=size, rendezvous="file:///unused"),
            (rank, meeting), slot_bytes=SLOT_BYTES, device=CPU, changes_stream=lambda: False,
            close_group=lambda: closed.append(rank),
        )  # fmt: skip
        found[rank] = body(workspaces, rank)
        workspaces.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(closed) == list(range(size))
    return [found[rank] for rank in range(size)], meeting.calls


def whole(rank, count, dtype=torch.bfloat16):
    """Whole numbers, whose sums are the same in every order."""
    return ((torch.arange(count) * (rank + 1)) % 5).to(dtype)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("count", [1, 8, 511, 1500])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_any_length_go_in_whole_packs(on_ranks, size, count, dtype):
    def body(workspaces, rank):
        x_N = whole(rank, count, dtype)
        workspaces.all_reduce(x_N, "sum")
        return x_N

    want_N = sum(whole(rank, count, torch.float32) for rank in range(size)).to(dtype)
    found, calls = on_ranks(size, body)
    assert all(torch.equal(found_N, want_N) for found_N in found)
    assert len(calls) == size * -(-2 * count // SLOT_BYTES)


@pytest.mark.parametrize("counts", [(3, 1), (700, 0), (5, 2000)])
def test_uneven_parts_are_padded_and_cut(on_ranks, counts):
    size = len(counts)

    def body(workspaces, rank):
        parts = [
            whole(r, n) if r == rank else torch.zeros(n).bfloat16() for r, n in enumerate(counts)
        ]
        workspaces.all_gather(parts)
        own = list(whole(rank, sum(counts)).split(list(counts)))
        out_N = torch.zeros(counts[rank]).bfloat16()
        workspaces.reduce_scatter(own, out_N, "sum")
        return parts, out_N

    total_N = sum(whole(rank, sum(counts), torch.float32) for rank in range(size)).bfloat16()
    for rank, (parts, out_N) in enumerate(on_ranks(size, body)[0]):
        assert torch.equal(torch.cat(parts), torch.cat([whole(r, n) for r, n in enumerate(counts)]))
        assert torch.equal(out_N, total_N.split(list(counts))[rank])


def test_bytes_that_are_gathered_keep_their_bits(on_ranks):
    def body(workspaces, rank):
        parts = [torch.full((9,), float("nan")).double().view(torch.int64) + r for r in range(2)]
        mine = [part if r == rank else torch.zeros_like(part) for r, part in enumerate(parts)]
        workspaces.all_gather(mine)
        return [torch.equal(a, b) for a, b in zip(mine, parts, strict=True)]

    assert on_ranks(2, body)[0] == [[True, True], [True, True]]


def test_another_stream_is_told_to_every_workspace_and_a_refusal_is_an_error(comm, make_meeting):
    workspaces = Workspaces(
        comm, ["all_reduce", "all_gather"], Group(rank=0, size=1, rendezvous="file:///unused"),
        (0, make_meeting(1)), slot_bytes=SLOT_BYTES, device=CPU, changes_stream=lambda: True,
        close_group=lambda: None,
    )  # fmt: skip
    held = list(workspaces._workspaces.values())
    workspaces.all_reduce(whole(0, 16), "sum")
    assert [workspace.rebound for workspace in held] == [1, 1]
    with pytest.raises(CollectiveError, match=r"takes no \(1, 8\) of torch.float32"):
        workspaces.all_reduce(torch.ones(8), "sum")
    workspaces.close()
    assert [workspace.destroyed for workspace in held] == [1, 1]


def test_what_differs_from_the_sources_is_refused_by_name(comm):
    form = FORMS["all_reduce"]
    assert unmet_form(comm, form) is None
    assert unmet_form(SimpleNamespace(), form) == "has no comm.PcieIpcAllReduceWorkspace"

    class Older:
        def __init__(self, group, max_numel, dtype):
            """As it is made."""

        def all_reduce(self, inp):
            """Without a place for the result."""

        supports = rebind_stream = destroy = all_reduce

    module = SimpleNamespace(PcieIpcAllReduceWorkspace=Older)
    assert unmet_form(module, form) == "comm.PcieIpcAllReduceWorkspace.all_reduce takes no out"
    del Older.rebind_stream
    assert unmet_form(module, form) == "comm.PcieIpcAllReduceWorkspace has no rebind_stream"


@needs_absence
def test_a_machine_without_it_says_so_in_the_decision():
    assert unmet_flashinfer("all_reduce") == "flashinfer-python is not installed"
    assert unmet_transport("flashinfer") == "flashinfer-python is not installed"
    group = Group(rank=0, size=2, rendezvous="file:///unused")
    question = Question(
        operation="all_reduce", contract="fast", size_bytes=1 << 20, dtype="bfloat16",
        num_ranks=2, device="cuda",
    )  # fmt: skip
    with pytest.raises(ImplUnavailable, match="flashinfer-python is not installed"):
        choose(question, group, transports=DEVICE_TRANSPORTS, asked="flashinfer/all_reduce")


def test_it_needs_torchs_default_group_for_itself(tmp_path):
    group = Group(rank=0, size=1, rendezvous=f"file://{tmp_path / 'store'}")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    try:
        assert dist.get_world_size(open_process_group(group, store, "gloo")) == 1
        with pytest.raises(CollectiveError, match="has a default group"):
            open_process_group(group, store, "gloo")
    finally:
        dist.destroy_process_group()
