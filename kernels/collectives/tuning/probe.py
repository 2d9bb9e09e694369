"""One rank's side of measuring: every candidate is checked, then all are timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels.collectives import pairwise
from kernels.collectives.algorithm import Algorithm, link_of
from kernels.collectives.algorithms import algorithms_for
from kernels.collectives.calls import Contract, dtype_name
from kernels.collectives.choice import Question, choose
from kernels.collectives.communicator import HostCommunicator
from kernels.collectives.conductor import slowest
from kernels.collectives.costs import SEEDS, LinkCosts
from kernels.collectives.fabric import Fabric, Transport
from kernels.collectives.link import Message
from kernels.collectives.tuning.table import Entry, Times
from kernels.collectives.tuning.trials import make_trial

_LINK_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the table to fill: an operation of `size_bytes` in all, under a contract."""

    op: str
    contract: Contract
    dtype: torch.dtype
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants of a transport's links, and by how much of itself a time is off at the median."""

    costs: LinkCosts
    residual: float


class WrongResult(RuntimeError):
    """A candidate's output differs from the whole numbers it must give, or was not written."""


def measure(
    communicator: HostCommunicator,
    case: Case,
    num_rounds: int,
    rejected: Mapping[str, str],
    report: Callable[[str], None],
) -> Entry:
    """The entry of a case: the least time wins where it clearly beats the seed's choice.

    Candidates, their order and number follow from the group alone, and times are the slowest
    rank's, so all ranks compute the same entry. `report` names a candidate before it runs, so
    that whoever waits knows which one hangs.
    Raises: WrongResult on all ranks when any rank's output is wrong.
    """
    fabric = communicator.fabric
    seed = _seed(fabric, case)
    candidates = [
        a
        for a in algorithms_for(case.op)
        if case.contract in a.contracts
        and a.transport in fabric.transports
        and a.unmet(fabric.group) is None
        and (a.name == seed.name or a.name not in rejected)
    ]
    count = max(1, case.size_bytes // case.dtype.itemsize)
    trial = make_trial(fabric, case.op, count, case.dtype)

    def timed_us(algorithm: Algorithm) -> float:
        trial.reset()
        fabric.board.step("tuning")
        begin_ns = time.perf_counter_ns()
        trial.run(algorithm)
        return slowest(fabric, time.perf_counter_ns() - begin_ns) / 1000

    for algorithm in candidates:
        report(algorithm.name)
        timed_us(algorithm)
        if slowest(fabric, int(not trial.is_right())):
            raise WrongResult(f"{algorithm.name} gives a wrong {case.op} of {count} elements")
    rounds = [[timed_us(algorithm) for algorithm in candidates] for _ in range(num_rounds)]
    times = {
        a.name: _times(row) for a, row in zip(candidates, zip(*rounds, strict=True), strict=True)
    }
    best = min(candidates, key=lambda a: (times[a.name].least, a.name))
    chosen = best.name if times[best.name].clearly_beats(times[seed.name]) else seed.name
    return Entry(
        op=case.op,
        n=fabric.group.size,
        dtype=dtype_name(case.dtype),
        contract=case.contract,
        ctx="eager",
        concurrent="idle",
        bytes=case.size_bytes,
        choice=chosen,
        seed=seed.name,
        us=times[chosen],
        seed_us=times[seed.name],
        num_rounds=num_rounds,
        is_checked=True,
    )


def _seed(fabric: Fabric, case: Case) -> Algorithm:
    question = Question(
        operation=case.op,
        contract=case.contract,
        size_bytes=case.size_bytes,
        dtype=dtype_name(case.dtype),
        num_ranks=fabric.group.size,
    )
    return choose(question, fabric.group, transports=fabric.transports)[0]


def fit_links(communicator: HostCommunicator, num_rounds: int) -> Iterator[tuple[str, Fitted]]:
    """Latency and rates of every open transport, from messages of growing size.

    A neighbour's rate comes from a swap around the ring, that of talking to all from pairwise
    rounds. Units: seconds and bytes a second; the slowest rank's least time of a size.
    """
    fabric = communicator.fabric
    for transport in fabric.transports:
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


def fit(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> tuple[float, float, float]:
    """a and B of t = a + S/B, and the median of |t - fit| / t.

    Weighted by 1/t, so that small messages count as much as large ones; neither constant is
    allowed to be negative or endless.
    """
    weights = [1 / t for t in times_s]
    design = torch.tensor(
        [[w, w * size] for w, size in zip(weights, sizes_bytes, strict=True)], dtype=torch.float64
    )
    ones = torch.ones(len(weights), 1, dtype=torch.float64)
    scale = torch.tensor([1.0, max(sizes_bytes)], dtype=torch.float64)
    solved = torch.linalg.lstsq(design / scale, ones).solution[:, 0] / scale
    latency_s = max(float(solved[0]), min(times_s) / 100)
    per_byte_s = max(float(solved[1]), 1e-13)
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
            least_ns = min(least_ns, slowest(fabric, time.perf_counter_ns() - begin_ns))
        found.append(least_ns / 1e9)
    return found


def _swap(fabric: Fabric, transport: Transport, size_bytes: int) -> None:
    link = link_of(fabric, transport)
    out, into = torch.zeros(2, size_bytes, dtype=torch.uint8)
    right, left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    link.exchange(Message(out, right), Message(into, left))


def _fan(fabric: Fabric, transport: Transport, size_bytes: int) -> None:
    link = link_of(fabric, transport)
    out = list(torch.zeros(link.size, size_bytes, dtype=torch.uint8))
    pairwise.all_to_all(link, out, [part.clone() for part in out])


def _times(row: Sequence[float]) -> Times:
    ordered = sorted(row)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]

    return Times(least=ordered[0], p20=at(0.2), p50=at(0.5), p80=at(0.8), p95=at(0.95))
