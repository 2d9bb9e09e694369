"""Operations over slots need no more of their memory than its contract."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kernels.collectives.choice import Question, choose
from kernels.collectives.fabric import DEVICE_TRANSPORTS
from kernels.collectives.group import Group
from kernels.collectives.peer_memory import unmet_peers
from kernels.collectives.slots import NUM_TURNS, Slots
from kernels.errors import ImplUnavailable

SLOT_BYTES = 1024


@dataclass(frozen=True)
class ThreadMemory:
    """Slots of ranks that are threads of one process."""

    group: Group
    slots: list[list[torch.Tensor]]
    barrier: threading.Barrier

    def step(self, doing: str) -> None:
        del doing
        self.barrier.wait(10)


def on_ranks(size: int, body: Callable[[Slots, int], torch.Tensor]) -> list[torch.Tensor]:
    """What `body` returns on each rank."""
    slots = [
        [torch.zeros(SLOT_BYTES, dtype=torch.uint8) for _ in range(NUM_TURNS)] for _ in range(size)
    ]
    barrier = threading.Barrier(size)
    found: dict[int, torch.Tensor] = {}

    def run(rank: int) -> None:
        group = Group(rank=rank, size=size, rendezvous="file:///unused")
        found[rank] = body(Slots(ThreadMemory(group, slots, barrier)), rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in range(size)]


def values(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [1, 255, 2000])
@pytest.mark.parametrize("name", ["one_shot", "two_shot"])
def test_sums_are_those_of_the_ranks_in_order(name: str, size: int, count: int) -> None:
    def body(slots: Slots, rank: int) -> torch.Tensor:
        x_N = values(rank, count)
        getattr(slots, name)(x_N, "sum")
        return x_N

    wanted_N = values(0, count)
    for rank in range(1, size):
        wanted_N = wanted_N + values(rank, count)
    for found_N in on_ranks(size, body):
        assert torch.equal(found_N, wanted_N)


def test_parts_of_all_ranks_are_gathered() -> None:
    counts = (700, 1, 300)

    def body(slots: Slots, rank: int) -> torch.Tensor:
        parts = [values(r, n) if r == rank else torch.zeros(n) for r, n in enumerate(counts)]
        slots.all_gather(parts)
        return torch.cat(parts)

    wanted_N = torch.cat([values(rank, count) for rank, count in enumerate(counts)])
    for found_N in on_ranks(len(counts), body):
        assert torch.equal(found_N, wanted_N)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="devices may reach each other here")
def test_a_machine_without_devices_says_so() -> None:
    assert unmet_peers() == "torch sees no device"


def test_devices_that_reach_each_other_may_be_asked_for() -> None:
    group = Group(rank=0, size=2, rendezvous="file:///unused")
    question = Question(
        operation="all_reduce",
        contract="exact",
        size_bytes=1 << 20,
        dtype="bf16",
        num_ranks=2,
        device="cuda",
    )
    algorithm, decision = choose(
        question, group, transports=DEVICE_TRANSPORTS, asked="peer/two_shot"
    )
    assert (algorithm.transport, algorithm.contracts) == ("peer", ("exact", "fast"))
    assert "unverified on devices" in decision.evidence
    with pytest.raises(ImplUnavailable, match="peer is not open"):
        choose(question, group, transports=("nccl",), asked="peer/two_shot")
