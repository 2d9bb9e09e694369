"""One rank's side of measuring links: a start and a rate for each transport, and a bare copy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.collectives import pairwise
from kernels.collectives.algorithm import has_link, link_of
from kernels.collectives.communicator import HostCommunicator
from kernels.collectives.conductor import slowest
from kernels.collectives.costs import SEEDS, LinkCosts
from kernels.collectives.fabric import Fabric, Transport
from kernels.collectives.link import Message
from kernels.collectives.tuning.probe import finish

_LINK_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants of a transport's links, and by how much of itself a time is off at the median."""

    costs: LinkCosts
    residual: float


def fit_links(communicator: HostCommunicator, num_rounds: int) -> Iterator[tuple[str, Fitted]]:
    """Latency and rates of every open transport, from messages of growing size.

    Those that carry no messages between two ranks keep their seeds. A neighbour's rate comes from
    a swap around the ring, that of talking to all from pairwise rounds. Units: seconds and bytes a
    second; the slowest rank's least time of a size.
    """
    fabric = communicator.fabric
    for transport in filter(has_link, fabric.transports):
        ring = _least_s(fabric, num_rounds, lambda size, t=transport: _swap(fabric, t, size))
        fan = _least_s(fabric, num_rounds, lambda size, t=transport: _fan(fabric, t, size))
        latency_s, ring_bytes_s, residual = fit(_LINK_BYTES, ring)
        num_others = fabric.group.size - 1
        _, fan_rate_bytes_s, _ = fit(_LINK_BYTES, [t / num_others for t in fan])
        costs = LinkCosts(
            latency_s=latency_s,
            ring_bytes_s=ring_bytes_s,
            fan_bytes_s=fan_rate_bytes_s,
            cross_latency_s=latency_s,
            cross_bytes_s=ring_bytes_s,
            codec_bytes_s=SEEDS[transport].codec_bytes_s,
        )
        yield transport, Fitted(costs=costs, residual=residual)


def copy_rate_bytes_s(communicator: HostCommunicator, num_rounds: int) -> float:
    """What each rank copies while all ranks copy; of the slowest rank's least time."""
    fabric = communicator.fabric
    source, target = torch.ones(2, _COPY_BYTES, dtype=torch.uint8, device=fabric.device)
    least_ns = math.inf
    for _ in range(num_rounds):
        fabric.board.step("probing copies")
        begin_ns = time.perf_counter_ns()
        target.copy_(source)
        finish(fabric)
        least_ns = min(least_ns, slowest(fabric, time.perf_counter_ns() - begin_ns))
    return _COPY_BYTES / least_ns * 1e9


def fit(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> tuple[float, float, float]:
    """a and B of t = a + S/B, and the median of |t - fit| / t.

    Weighted by 1/t, so that small messages count as much as large ones; neither constant is
    allowed to be negative or endless.
    """
    # The normal equations of two unknowns, in plain floats: the same bits in every process.
    weights = [1 / t**2 for t in times_s]
    rows = list(zip(weights, sizes_bytes, times_s, strict=True))
    one, size, square = (sum(w * s**power for w, s, _ in rows) for power in (0, 1, 2))
    time_, both = (sum(w * s**power * t for w, s, t in rows) for power in (0, 1))
    determinant = one * square - size * size
    latency_s = max((square * time_ - size * both) / determinant, min(times_s) / 100)
    per_byte_s = max((one * both - size * time_) / determinant, 1e-13)
    off = [
        abs(t - latency_s - size * per_byte_s) / t
        for t, size in zip(times_s, sizes_bytes, strict=True)
    ]
    return latency_s, 1 / per_byte_s, sorted(off)[len(off) // 2]


def _least_s(fabric: Fabric, num_rounds: int, run: Callable[[int], None]) -> list[float]:
    found: list[float] = []
    for size_bytes in _LINK_BYTES:
        least_ns = math.inf
        for _ in range(num_rounds):
            fabric.board.step("probing links")
            begin_ns = time.perf_counter_ns()
            run(size_bytes)
            finish(fabric)
            least_ns = min(least_ns, slowest(fabric, time.perf_counter_ns() - begin_ns))
        found.append(least_ns / 1e9)
    return found


def _swap(fabric: Fabric, transport: Transport, size_bytes: int) -> None:
    link = link_of(fabric, transport)
    out, into = torch.zeros(2, size_bytes, dtype=torch.uint8, device=fabric.device)
    right, left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    link.exchange(Message(out, right), Message(into, left))


def _fan(fabric: Fabric, transport: Transport, size_bytes: int) -> None:
    link = link_of(fabric, transport)
    out = list(torch.zeros(link.size, size_bytes, dtype=torch.uint8, device=fabric.device))
    pairwise.all_to_all(link, out, [part.clone() for part in out])
