"""Measuring a machine with two ranks and fitting the constants: what `Calibration` holds."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime

from kernels.calibration.computing import grid, measure_s
from kernels.calibration.crew import Crew
from kernels.calibration.fitting import Sample, fit
from kernels.calibration.seat import SIZE, Seat, busy_s, cpu_s
from kernels.calibration.table import Calibration
from kernels.calibration.talking import OPERATIONS, SIZES_BYTES, Talk, link_s, measure_talk
from kernels.calibration.work import Fit, Work, features
from kernels.collectives.schedules.graph import Node, Schedule
from kernels.collectives.schedules.threads import run_threads
from kernels.collectives.topology import Topology

# Flops that a byte on the wire stands against where link and computing take equally long.
_BALANCE_FLOPS_PER_BYTE = 800.0
_SEEN_RATIOS = (0.5, 2.2)
_REPEATS, _TALKS = 9, 7
_HANDOFFS, _LINK_SLEEP_S = 100, 3e-3
_LARGE = Work("gemm", (448, 1408, 576))


def calibrate(crew: Crew, here: Topology, say: Callable[[str], None]) -> Calibration:
    """Measure everything, both ranks at the same time since they also compute so.

    Raises: CrewFailed.
    """
    begin_s = time.monotonic()
    before = _use(crew)
    say("computing")
    works = grid()
    both = crew.run(measure_computing, works)
    times = {work: max(pair) for work, pair in zip(works, zip(*both, strict=True), strict=True)}
    flops_s = 2.0 * _LARGE.sizes[0] * _LARGE.sizes[1] * _LARGE.sizes[2] / times[_LARGE]
    balance_bytes_s = flops_s / _BALANCE_FLOPS_PER_BYTE
    rates = tuple(round(balance_bytes_s * ratio) * 1.0 for ratio in _SEEN_RATIOS)
    talks: list[Talk] = []
    for rate_bytes_s in rates:
        say(f"talking at {rate_bytes_s / 1e6:.0f} MB/s")
        talks += [
            _talk(crew, operation, size_bytes, rate_bytes_s)
            for operation, size_bytes in itertools.product(OPERATIONS, SIZES_BYTES)
        ]
    handoff_s = max(crew.run(measure_handoff))
    kinds = {work.kind for work in works}
    return Calibration(
        facts=here.facts(),
        computing={kind: _computing_fit(times, kind) for kind in sorted(kinds)},
        wire={name: _talk_fit(talks, name, lambda t: t.idle_s - _link_s(t)) for name in OPERATIONS},
        wire_busy={
            name: _talk_fit(talks, name, lambda t: t.busy_s - _link_s(t)) for name in OPERATIONS
        },
        computing_lost={name: _talk_fit(talks, name, lambda t: t.lost_s) for name in OPERATIONS},
        handoff_s=handoff_s,
        balance_bytes_s=balance_bytes_s,
        seen_bytes_s=rates,
        seen_sizes={k: tuple(w.sizes for w in works if w.kind == k) for k in sorted(kinds)},
        disturbed=_disturbed(before, _use(crew)),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - begin_s, 1),
    )


def measure_computing(seat: Seat, works: list[Work]) -> list[float]:
    """This rank's time of every work."""
    return [measure_s(work, _REPEATS) for work in works]


def measure_handoff(seat: Seat) -> float:
    """What passes between the end of a node on a sleeping stream and the begin of the next."""
    nodes = [
        Node(
            name=str(i),
            rank=0,
            stream="compute" if i % 2 else "wire",
            kind="compute",
            after=(str(i - 1),) if i else (),
        )
        for i in range(_HANDOFFS)
    ]
    schedule = Schedule(name="handoff", nodes=tuple(nodes))
    actions = {n.name: _sleep if n.stream == "wire" else _nothing for n in nodes}
    ran = run_threads(schedule, 0, actions)
    gaps_s = [after.begin_s - before.end_s for before, after in itertools.pairwise(ran)]
    return statistics.median(gaps_s[::2])


def use(seat: Seat) -> tuple[float, float, float]:
    """(wall, busy processors, this process) in seconds, to see what other programs used."""
    return time.monotonic(), busy_s(), cpu_s()


def _sleep() -> None:
    """What the wire does for most of a transfer."""
    time.sleep(_LINK_SLEEP_S)


def _nothing() -> None:
    """What a node without work does."""


def _use(crew: Crew) -> tuple[float, float, float]:
    found = crew.run(use)
    return found[0][0], found[0][1], sum(own for _, _, own in found) + cpu_s()


def _disturbed(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    wall_s, all_s, own_s = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, all_s - own_s) / (wall_s * (os.cpu_count() or 1))


def _talk(crew: Crew, operation: str, size_bytes: int, rate_bytes_s: float) -> Talk:
    found = crew.run(measure_talk, operation, size_bytes, rate_bytes_s, _TALKS)
    idle_s, slowed_s, lost_s = (max(pair) for pair in zip(*found, strict=True))
    return Talk(
        operation=operation,
        size_bytes=size_bytes,
        rate_bytes_s=rate_bytes_s,
        idle_s=idle_s,
        busy_s=slowed_s,
        lost_s=lost_s,
    )


def _link_s(talk: Talk) -> float:
    return link_s(talk.operation, talk.size_bytes, talk.rate_bytes_s)


def _computing_fit(times: dict[Work, float], kind: str) -> Fit:
    return fit([Sample(features(w), t, t) for w, t in times.items() if w.kind == kind])


def _talk_fit(talks: list[Talk], operation: str, explained_s: Callable[[Talk], float]) -> Fit:
    """Errors are shares of the whole collective, since that is what a prediction is for."""
    own = [talk for talk in talks if talk.operation == operation]
    return fit([Sample((1.0, float(t.size_bytes)), explained_s(t), t.idle_s) for t in own])


assert SIZE == 2  # a step's schedule and the sizes of messages are made for two ranks
