"""Ranks on devices that are not there: no hidden copy, no hidden wait, the bits of the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.collectives.choice import SEED
from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.conductor import Conductor
from kernels.collectives.group import Group
from kernels.ledger import Ledger
from llm_engine.cache.tensor_storage import TensorStorage
from llm_engine.config import EngineConfig
from llm_engine.device import upload
from llm_engine.layers.bound_ops import bind_ops
from llm_engine.layers.op_choice import OpSizes
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.exchange_choice import cache_parts
from llm_engine.parallel.executor import RankExecutor
from llm_engine.parallel.loading import load_share, planned_memory
from llm_engine.parallel.mesh import Groups, join_part
from llm_engine.parallel.overlap_policy import OverlapPolicy
from llm_engine.parallel.step_command import PageMove, StepCommand
from tests.llm_engine.parallel.pretend import (
    Mixed,
    Pretend,
    PretendDevice,
    PretendRanks,
    Reads,
    lifted,
    on_devices,
    with_kernels,
)
from tests.llm_engine.parallel.test_adapter_shares import ATTENTION, MLP, write
from tests.llm_engine.parallel.test_layouts import MOE

PAGE, NUM_PAGES, CONTEXT = 4, 40, 64
TORCH = dict.fromkeys(
    ("rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode"), "torch"
)
EXPERTS = "layers/experts.py:apply_experts"
LAYOUTS = {
    "tp2": {}, "cp2,heads": {}, "cp2,gather": {}, "cp2,ring": {}, "pp2": {}, "dp2": {},
    "cp2->tp2": {}, "pp2->tp2": {},
    "ep2": MOE, "cp2,ep2,gather": MOE, "dp2,ep2,a2a": MOE, "cp2,ep2,a2a": MOE,
}  # fmt: skip


def commands(num_parts: int, adapters: tuple[int, ...] = ()) -> list[StepCommand]:
    """Two prompts, one of them in two chunks, pages saved and brought back, then two answers."""
    a, b = tuple(range(1, 9)), tuple(range(9, 17))

    def step(number: int, phase: Any, spans: Any, rows: Any, **more: Any) -> StepCommand:
        count = sum(span.num_tokens for span in spans)
        tokens = tuple((7 * i + 3 * number) % 240 for i in range(count))
        if num_parts > 1 and count:
            more["part_rows"] = tuple(span.num_tokens for span in spans)
        if count:
            more["adapters"] = adapters
        return StepCommand(
            sequence=number, phase=phase, token_ids=tokens, spans=spans, logit_rows=rows, **more
        )

    saved = (PageMove("save", (1, 2), 5), PageMove("copy", (3, 20)), PageMove("load", (1, 2), 5))
    return [
        step(0, "prefill", (AttentionSpan(0, 13, a[:4]), AttentionSpan(0, 9, b[:3])), (12, 21)),
        step(1, "prefill", (AttentionSpan(13, 10, a[:6]), AttentionSpan(9, 2, b[:3])), (9, 11)),
        step(2, "decode", (), (), moves=saved),
        step(3, "decode", (AttentionSpan(23, 1, a[:6]), AttentionSpan(11, 1, b[:3])), (0, 1)),
    ]


def staged(world: HostCommunicator, place: torch.device, ledger: Ledger) -> HostCommunicator:
    """The same ranks with the transport of a device that needs none: through the host's memory."""
    fabric = replace(world.fabric, transports=("shm", "staged"))
    store: Any = None  # asked about epochs after a failure alone
    return HostCommunicator(Conductor(fabric, store, ledger, SEED, SEED, place))


def logits_of(
    folder: Path,
    layout: str,
    meeting: Path,
    is_pretended: bool,
    ledger: Ledger | None = None,
    adapters: dict[str, str] | None = None,
) -> tuple[list[torch.Tensor], Reads]:
    """Rank 0's logits of every step, and what the host read of devices in them.

    With a ledger tensors travel by the communicator's own `staged`, else as if by a device's links.
    """
    reads = Reads()

    # From the start: torch cannot make views of the two kinds of tensors beside one another.
    @torch.inference_mode()
    def rank(index: int) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        group = Group(rank=index, size=2, rendezvous=f"file://{meeting}", timeout_s=60)
        world = join(group, transports=("shm",))
        device = PretendDevice.numbered(index) if is_pretended else None
        with on_devices(Reads()) if is_pretended else nullcontext():
            comm: Any = world
            if device is not None and ledger is not None:
                comm = staged(world, device.place, ledger if index == 0 else Ledger())
            elif device is not None:
                comm = PretendRanks(world, device.place)
            executor = executor_of(folder, layout, comm, device, adapters or {})
        found: list[torch.Tensor] = []
        with on_devices(reads) if is_pretended else nullcontext():
            uses = (2, 1) if adapters else ()
            for command in commands(2 if layout.startswith("dp") else 1, uses):
                logits = executor.execute(command)
                if logits is not None:
                    assert isinstance(logits, Pretend) == is_pretended
                    found.append(logits.values_ if isinstance(logits, Pretend) else logits)
        executor.close()
        world.close()
        return found

    with lifted() if is_pretended else nullcontext(), ThreadPoolExecutor(2) as threads:
        first, _ = list(threads.map(rank, range(2)))
    return first, reads


def executor_of(
    folder: Path, layout: str, comm: Any, device: Any, adapters: dict[str, str]
) -> RankExecutor:
    config = EngineConfig(
        model=str(folder), layout=layout, dtype="float32", page_size=PAGE, kernels=TORCH,
        max_model_len=CONTEXT, kv_cache_bytes=1 << 22, overlap="off",
        adapters=adapters,
    )  # fmt: skip
    share = load_share(config, comm.group, device)
    planned_memory(share, comm)
    sizes = OpSizes(
        chunk_tokens=64, num_seqs=2, context=CONTEXT, page_size=PAGE // cache_parts(share.layouts)
    )
    ops = bind_ops(
        share.cached, share.dtype, sizes, asked=TORCH, ledger=Ledger(), device=share.device,
        has_ranks=True,
    )  # fmt: skip
    if device is not None:
        ops = with_kernels(ops)
    return RankExecutor(
        share, ops, Groups(comm, join_part), NUM_PAGES, PAGE, CONTEXT, Ledger(),
        OverlapPolicy.of(config),
    )  # fmt: skip


@torch.inference_mode()
def test_places_that_meet_and_values_that_are_read_are_found() -> None:
    """What the tests below rest on."""
    reads, place = Reads(), torch.device("cuda", 1)
    with lifted(), on_devices(reads):
        x = upload([1, 2, 3], torch.int64, place)
        y = x.index_select(0, upload([2, 0], torch.int64, place)) + 1
        assert (y.device, y.dtype) == (place, torch.int64)
        for mixing in (
            lambda: x + torch.ones(3),
            lambda: x[[0, 1]],
            lambda: x.index_select(0, torch.tensor([1])),
            lambda: torch.cat((x, upload([1], torch.int64, torch.device("cuda", 0)))),
        ):
            with pytest.raises(Mixed):
                mixing()
        assert not reads.places
        TensorStorage([x]).copy_out(0, (1,))
    assert reads.places == {"cache/tensor_storage.py:copy_out"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_gets_all_that_it_computes_with(
    layout: str, tmp_path: Path, model_folder: Callable[..., Path]
) -> None:
    """Every tensor of a step lies where the others do, and logits are those of CPU ranks."""
    folder = model_folder(**LAYOUTS[layout])
    wanted, _ = logits_of(folder, layout, tmp_path / "cpu", is_pretended=False)
    found, reads = logits_of(folder, layout, tmp_path / "devices", is_pretended=True)
    assert len(found) == len(wanted) == 3
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
    expected = {"cache/tensor_storage.py:copy_out"}  # pages saved in the host's memory
    if LAYOUTS[layout]:
        expected.add(EXPERTS)  # how many rows each expert has
    if "a2a" in layout:
        expected.add("parallel/expert_exchange.py:_rows_by_rank")
    assert reads.places == expected


@pytest.mark.parametrize("layout", ["tp2", "dp2,ep2,a2a"])
def test_adapters_lie_on_the_device_too(
    layout: str, tmp_path: Path, model_folder: Callable[..., Path]
) -> None:
    """Each prompt with its own; rows that travel to experts take the number of theirs along."""
    folder = model_folder(**LAYOUTS[layout])
    folders = {name: str(tmp_path / name) for name in ("one", "other")}
    write(folder, tmp_path / "one", ATTENTION + MLP, seed=1)
    write(folder, tmp_path / "other", ("v_proj", "o_proj", "up_proj"), seed=2)
    plain, _ = logits_of(folder, layout, tmp_path / "plain", is_pretended=False)
    wanted, _ = logits_of(folder, layout, tmp_path / "cpu", is_pretended=False, adapters=folders)
    found, reads = logits_of(
        folder, layout, tmp_path / "devices", is_pretended=True, adapters=folders
    )
    for ours, theirs, base in zip(found, wanted, plain, strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.allclose(ours, base)
    expected = {"cache/tensor_storage.py:copy_out"}
    if "a2a" in layout:
        expected |= {EXPERTS, "adapters/adapter_set.py:update_expert"}
        exchange = "parallel/expert_exchange.py"
        expected |= {f"{exchange}:_rows_by_rank", f"{exchange}:_dispatched"}
    assert reads.places == expected


@pytest.mark.parametrize("layout", ["tp2", "cp2,ring", "cp2,ep2,a2a"])
def test_tensors_of_devices_travel_through_the_host(
    layout: str, tmp_path: Path, model_folder: Callable[..., Path]
) -> None:
    """By the communicator itself; what is no tensor of a device stays with the host's forms."""
    folder, ledger = model_folder(**LAYOUTS[layout]), Ledger()
    wanted, _ = logits_of(folder, layout, tmp_path / "cpu", is_pretended=False)
    found, _ = logits_of(folder, layout, tmp_path / "devices", is_pretended=True, ledger=ledger)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
    chosen = {(decision.what, decision.chosen) for decision in ledger}
    assert ("all_to_all (exact)", "staged/direct") in chosen
    assert ("all_reduce (exact)", "shm/one_shot") in chosen  # figures of memory
    if layout == "tp2":
        assert ("all_reduce (exact)", "staged/two_shot") in chosen
    if "ring" in layout:
        assert ("messages between devices", "staged, over shm") in chosen


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off (make test)"
)
@pytest.mark.parametrize(("layout", "model"), [("tp2", {}), ("cp2,ring", {}), ("ep2", MOE)])
def test_ranks_with_a_devices_kernels_give_the_tokens_of_one(
    layout: str,
    model: dict[str, Any],
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    """Two processes with the kernels of a family, interpreted; one rank computes with torch's."""
    folder, rounds = model_folder(**model), (([7 * i % 240 for i in range(13)], [5, 9, 2]),)
    ((tokens, logits),) = alone(folder, rounds, 3)
    found = pair.generate(layout, folder, rounds, 3, family="sm_120")
    assert found["tokens"] == [tokens]
    for ours, theirs in zip(found["logits"][0], logits, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4, rtol=1e-5)
    kernels = {op: chosen for op, chosen, _ in found["card"].kernels}
    for op in ("rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode"):
        assert kernels[op] == "triton", kernels
