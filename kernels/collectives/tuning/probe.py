"""One rank's side of measuring: every candidate is checked, then all are timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels.collectives.algorithm import Algorithm
from kernels.collectives.algorithms import algorithms_for
from kernels.collectives.calls import Contract, dtype_name
from kernels.collectives.choice import Question, choose
from kernels.collectives.communicator import HostCommunicator
from kernels.collectives.conductor import slowest
from kernels.collectives.fabric import Fabric
from kernels.collectives.tuning.table import Entry, Times
from kernels.collectives.tuning.trials import make_trial

# A heat of all, then a fixed number go on: one that is ten times slower needs no fifteen rounds.
_HEAT_ROUNDS, _SURVIVORS = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the table to fill: an operation of `size_bytes` in all, under a contract."""

    op: str
    contract: Contract
    dtype: torch.dtype
    size_bytes: int


class WrongResult(RuntimeError):
    """A candidate's output differs from the whole numbers it must give, or was not written."""


def measure(
    communicator: HostCommunicator,
    case: Case,
    num_rounds: int,
    rejected: Mapping[str, str],
    report: Callable[[str], None],
) -> Entry:
    """The entry of a case: the fastest wins where it clearly beats the seed's choice.

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
        and a.unmet_values(dtype_name(case.dtype), "sum") is None
        and (a.name == seed.name or a.name not in rejected)
    ]
    times = time_candidates(communicator, case, candidates, num_rounds, report, seed.name)
    chosen, why = verdict(times, seed.name)
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
        p50_us={name: measured.p50 for name, measured in times.items()},
        why=why,
    )


def verdict(times: Mapping[str, Times], seed: str) -> tuple[str, str]:
    """What is taken, and why: the fastest unless something speaks for staying with the seed.

    Ranked by the 20th percentile: what else the machine does only adds, and a single lucky round
    does not decide.
    """
    best = min(times, key=lambda name: (times[name].p20, name))
    if best == seed:
        return seed, f"the seed's choice, fastest of {len(times)} at p20"
    doubts = times[best].doubts(times[seed])
    if doubts:
        return seed, f"stays with the seed's choice: {best} {'; '.join(doubts)}"
    gain = times[seed].p50 / times[best].p50
    return best, f"{gain:.2f}x of {seed}, spreads apart"


def time_candidates(
    communicator: HostCommunicator,
    case: Case,
    candidates: Sequence[Algorithm],
    num_rounds: int,
    report: Callable[[str], None],
    kept: str = "",
) -> dict[str, Times]:
    """Check every candidate, then time them in turns: the slowest rank's times, alike on all.

    After a few rounds only the fastest go on, a fixed number of them, and the one that is `kept`;
    the others have the times of those rounds.
    Raises: WrongResult on all ranks when any rank's output is wrong.
    """
    fabric = communicator.fabric
    count = max(1, case.size_bytes // case.dtype.itemsize)
    trial = make_trial(fabric, case.op, count, case.dtype, fabric.device)

    def timed_us(algorithm: Algorithm) -> float:
        trial.reset()
        finish(fabric)
        fabric.board.step("tuning")
        begin_ns = time.perf_counter_ns()
        trial.run(algorithm)
        finish(fabric)
        return slowest(fabric, time.perf_counter_ns() - begin_ns) / 1000

    for algorithm in candidates:
        report(algorithm.name)
        timed_us(algorithm)
        if slowest(fabric, int(not trial.is_right())):
            raise WrongResult(f"{algorithm.name} gives a wrong {case.op} of {count} elements")
    times_us: dict[str, list[float]] = {a.name: [] for a in candidates}
    going_on = candidates
    for done in range(num_rounds):
        if done == _HEAT_ROUNDS:
            going_on = _survivors(candidates, times_us, kept)
        for algorithm in going_on:
            times_us[algorithm.name].append(timed_us(algorithm))
    return {name: _times(row) for name, row in times_us.items()}


def finish(fabric: Fabric) -> None:
    """Wait until the device of this rank has done what was launched on it."""
    if fabric.device == "cuda":
        torch.cuda.synchronize()


def _survivors(
    candidates: Sequence[Algorithm], times_us: Mapping[str, Sequence[float]], kept: str
) -> list[Algorithm]:
    """The fastest so far, in the order of the candidates: the same on all ranks, as times are."""
    ranked = sorted(candidates, key=lambda a: (a.name != kept, min(times_us[a.name])))
    names = {a.name for a in ranked[:_SURVIVORS]}
    return [a for a in candidates if a.name in names]


def _seed(fabric: Fabric, case: Case) -> Algorithm:
    question = Question(
        operation=case.op,
        contract=case.contract,
        size_bytes=case.size_bytes,
        dtype=dtype_name(case.dtype),
        num_ranks=fabric.group.size,
        device=fabric.device,
    )
    return choose(question, fabric.group, transports=fabric.transports)[0]


def _times(row: Sequence[float]) -> Times:
    ordered = sorted(row)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]

    return Times(least=ordered[0], p20=at(0.2), p50=at(0.5), p80=at(0.8), p95=at(0.95))
