"""One rank's side of measuring collectives: alone, and while the rank computes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.calibration.seat import SIZE, Seat
from kernels.collectives.choice import Question, choose
from kernels.collectives.communicator import HostCommunicator
from kernels.collectives.costs import LinkCosts
from kernels.collectives.group import Group
from kernels.ops.gemm import gemm

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# No validated step sends messages of these sizes.
SIZES_BYTES = (72_000, 360_000, 1_440_000)
_ROW_BYTES = 4 * 300
_PRODUCT = (160, 480, 480)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One collective at one size and rate. Units: seconds; medians of both ranks' slower one.

    `idle_s` alone, `busy_s` while the rank computes, `lost_s` what computing lost to one.
    """

    operation: str
    size_bytes: int
    rate_bytes_s: float
    idle_s: float
    busy_s: float
    lost_s: float


def link_s(operation: str, size_bytes: int, rate_bytes_s: float) -> float:
    """What the link alone takes for the bytes of the algorithm that would be chosen."""
    group = Group(rank=0, size=SIZE, rendezvous="file:///unused", rate_bytes_s=rate_bytes_s)
    question = Question(
        operation=operation,
        contract="exact",
        size_bytes=size_bytes,
        dtype="float32",
        num_ranks=SIZE,
    )
    algorithm, _ = choose(question, group, transports=("shm",))
    costs = LinkCosts(latency_s=0.0, ring_bytes_s=rate_bytes_s, fan_bytes_s=rate_bytes_s)
    return algorithm.cost_s(size_bytes, SIZE, costs)


def call_of(
    communicator: HostCommunicator, operation: str, size_bytes: int
) -> Callable[[], object]:
    """A collective of so many bytes, as `link_s` counts them."""
    rows = size_bytes // _ROW_BYTES
    x = torch.ones(rows, _ROW_BYTES // 4)
    half = rows // 2
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: communicator.all_reduce(x),
        "all_gather": lambda: communicator.all_gather(x[:half]),
        "reduce_scatter": lambda: communicator.reduce_scatter(x),
        "all_to_all": lambda: communicator.all_to_all(x, [half, rows - half]),
    }
    return calls[operation]


def measure_talk(
    seat: Seat, operation: str, size_bytes: int, rate_bytes_s: float, num_repeats: int
) -> tuple[float, float, float]:
    """(idle, busy, lost) of this rank; see `Talk`."""
    communicator = seat.communicator(rate_bytes_s)
    call = call_of(communicator, operation, size_bytes)
    call()
    idle_s = _each_s(call, num_repeats)
    M, N, K = _PRODUCT
    x_MK, weight_NK = torch.randn(M, K), torch.randn(N, K)
    alone_s = statistics.median(_each_s(lambda: gemm(x_MK, weight_NK), 9) for _ in range(3))
    # One product too many rather than too few: every call must meet computing.
    count = int(num_repeats * idle_s * 1.3 / alone_s) + 1
    talks: list[float] = []
    communicator.barrier()

    def talk() -> None:
        # Inference mode is a thread's own.
        with torch.inference_mode():
            for _ in range(num_repeats):
                begin_s = time.perf_counter()
                call()
                talks.append(time.perf_counter() - begin_s)

    thread = threading.Thread(target=talk)
    thread.start()
    begin_s = time.perf_counter()
    slowed = 0
    while thread.is_alive() and slowed < 20 * count:
        gemm(x_MK, weight_NK)
        slowed += 1
    took_s = time.perf_counter() - begin_s
    thread.join()
    return idle_s, statistics.median(talks), max(0.0, took_s - slowed * alone_s) / num_repeats


def _each_s(call: Callable[[], object], num_repeats: int) -> float:
    times: list[float] = []
    for _ in range(num_repeats):
        begin_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times)
