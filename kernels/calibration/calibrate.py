"""Measuring a machine with two ranks and fitting the constants: what `Calibration` holds.

Legend: M rows, N columns, K depth.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kernels.calibration.computing import grid, measure_works
from kernels.calibration.crew import Crew
from kernels.calibration.fitting import Sample, fit
from kernels.calibration.in_steps import SUM_OF_PARTS
from kernels.calibration.seat import SIZE, Seat, busy_s, cpu_s
from kernels.calibration.table import Calibration
from kernels.calibration.talking import OPERATIONS, SIZES_BYTES, Talk, link_s, measure_talk
from kernels.calibration.timing import spread_of
from kernels.calibration.work import Fit, Work, features
from kernels.collectives.topology import Topology

# Flops that a byte on the wire stands against where link and computing take equally long.
_BALANCE_FLOPS_PER_BYTE = 800.0
_SEEN_RATIOS = (0.5, 2.2)
_TALKS, _TALK_ROUNDS = 5, 3
# Rounds of measuring computing: at least, at most, and when one that spreads is not repeated.
_ROUNDS, _MOST_ROUNDS, _COMPUTING_S = 4, 12, 15.0
_MOST_SPREAD = 0.1
_LARGE = Work("gemm", (448, 1408, 576))


def calibrate(crew: Crew, here: Topology, say: Callable[[str], None]) -> Calibration:
    """Measure every part, both ranks at the same time since they also compute so.

    Steps are taken as the sum of their parts: those who run steps practise some and say what
    they take beyond.
    Raises: CrewFailed.
    """
    begin_s, load = time.monotonic(), os.getloadavg()[0]
    before = processors(crew)
    say("computing")
    rounds = computing_rounds(crew, grid())
    times = {work: statistics.median(found) for work, found in rounds.items()}
    kinds = sorted({work.kind for work in times})
    computing = {kind: _computing_fit(times, kind) for kind in kinds}
    balance_bytes_s = _flops_s(computing["gemm"]) / _BALANCE_FLOPS_PER_BYTE
    rates = tuple(round(balance_bytes_s * ratio) * 1.0 for ratio in _SEEN_RATIOS)
    say(f"talking at {' and '.join(f'{rate / 1e6:.0f}' for rate in rates)} MB/s")
    talks = _talk_rounds(crew, rates)
    return Calibration(
        facts=here.facts(),
        computing=computing,
        wire={name: _talk_fit(talks, name, lambda t: t.idle_s - _link_s(t)) for name in OPERATIONS},
        wire_busy={
            name: _talk_fit(talks, name, lambda t: t.busy_s - _link_s(t)) for name in OPERATIONS
        },
        computing_lost={name: _talk_fit(talks, name, lambda t: t.lost_s) for name in OPERATIONS},
        in_steps=SUM_OF_PARTS,
        balance_bytes_s=balance_bytes_s,
        seen_bytes_s=rates,
        seen_sizes={k: tuple(w.sizes for w in times if w.kind == k) for k in kinds},
        spread=statistics.median(spread_of(found) for found in rounds.values()),
        disturbed=others_share(before, processors(crew)),
        load=load,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - begin_s, 1),
    )


def computing_rounds(crew: Crew, works: Sequence[Work]) -> dict[Work, list[float]]:
    """The slower rank's time of every work in every round; more of them where they lie apart."""
    found: dict[Work, list[float]] = {work: [] for work in works}
    end_s = time.monotonic() + _COMPUTING_S
    todo = list(works)
    while todo:
        both = crew.run(measure_works, todo)
        for work, pair in zip(todo, zip(*both, strict=True), strict=True):
            found[work].append(max(pair))
        num_rounds = max(map(len, found.values()))
        is_over = num_rounds >= _ROUNDS and time.monotonic() > end_s
        todo = [
            work
            for work, times in found.items()
            if len(times) < _ROUNDS
            or (len(times) < _MOST_ROUNDS and not is_over and spread_of(times) > _MOST_SPREAD)
        ]
    return found


def processor_use(seat: Seat) -> tuple[float, float, float]:
    """(wall, busy processors, this process) in seconds, to see what other programs used."""
    return time.monotonic(), busy_s(), cpu_s()


def processors(crew: Crew) -> tuple[float, float, float]:
    """(wall, busy processors, these programs) in seconds; two of them give `others_share`."""
    found = crew.run(processor_use)
    return found[0][0], found[0][1], sum(own for _, _, own in found) + cpu_s()


def others_share(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """The share of all processors that other programs used in between."""
    wall_s, all_s, own_s = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, all_s - own_s) / (wall_s * (os.cpu_count() or 1))


def _talk_rounds(crew: Crew, rates: Sequence[float]) -> list[Talk]:
    """Every collective at every size and rate in turn; the medians of all rounds."""
    cases = list(itertools.product(rates, OPERATIONS, SIZES_BYTES))
    rounds = [[_talk(crew, *case) for case in cases] for _ in range(_TALK_ROUNDS)]
    return [
        replace(
            found[0],
            idle_s=statistics.median(talk.idle_s for talk in found),
            busy_s=statistics.median(talk.busy_s for talk in found),
            lost_s=statistics.median(talk.lost_s for talk in found),
        )
        for found in zip(*rounds, strict=True)
    ]


def _talk(crew: Crew, rate_bytes_s: float, operation: str, size_bytes: int) -> Talk:
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


def _flops_s(products: Fit) -> float:
    """Of a large product, by all that were measured: one sample would carry its own noise."""
    M, N, K = _LARGE.sizes
    return 2.0 * M * N * K / products.seconds(features(_LARGE))


def _computing_fit(times: dict[Work, float], kind: str) -> Fit:
    return fit([Sample(features(w), t, t) for w, t in times.items() if w.kind == kind])


def _talk_fit(talks: list[Talk], operation: str, explained_s: Callable[[Talk], float]) -> Fit:
    """Errors are shares of the whole collective, since that is what a prediction is for."""
    own = [talk for talk in talks if talk.operation == operation]
    return fit([Sample((1.0, float(t.size_bytes)), explained_s(t), t.idle_s) for t in own])


assert SIZE == 2  # a step's schedule and the sizes of messages are made for two ranks
