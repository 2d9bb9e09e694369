"""Plans run again and again in turn, until enough runs were left alone by other programs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kernels.calibration.crew import Crew
from kernels.calibration.table import BUSY_RATIO
from kernels.calibration.timing import spread_of
from kernels.collectives.schedules.virtual_time import Timeline
from workers.planning.validation.running import Ran, run
from workers.planning.validation.step import Plan

NUM_RUNS = 5
_MOST_ROUNDS = 12
# Runs that lie further apart than this are added to, while there is time.
_MOST_SPREAD = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a plan: both ranks, and the processors' share that other programs had."""

    ranks: tuple[Ran, ...]
    disturbed: float

    @property
    def took_s(self) -> float:
        """Until the slower rank's end."""
        return max(rank.took_s for rank in self.ranks)

    def core_s(self, names: Collection[str]) -> float:
        """How long these nodes had a core, on the rank that needed it longer."""
        return max(sum(n.core_s for n in rank.nodes if n.name in names) for rank in self.ranks)


@dataclass(slots=True)
class Case:
    """A plan at a rate, its prediction if it has one (made before any run), and its runs."""

    plan: Plan
    rate_bytes_s: float
    timeline: Timeline | None = None
    order: str = ""
    runs: list[Run] = field(default_factory=list[Run])

    @property
    def counted(self) -> list[Run]:
        """The undisturbed runs, or the least disturbed where there are too few.

        Which these are does not depend on how long they took.
        """
        quiet = [one for one in self.runs if one.disturbed <= BUSY_RATIO]
        if len(quiet) >= NUM_RUNS:
            return quiet
        return sorted(self.runs, key=lambda one: one.disturbed)[:NUM_RUNS]

    @property
    def times_s(self) -> list[float]:
        """How long the runs took that count."""
        return [one.took_s for one in self.counted]

    @property
    def disturbed(self) -> float:
        """The median share that other programs had during the runs that count."""
        return statistics.median(one.disturbed for one in self.counted)

    @property
    def is_known(self) -> bool:
        """Whether undisturbed runs are enough and close together."""
        num_quiet = sum(one.disturbed <= BUSY_RATIO for one in self.runs)
        return num_quiet >= NUM_RUNS and spread_of(self.times_s) <= _MOST_SPREAD


def run_rounds(
    crew: Crew, cases: Sequence[Case], say: Callable[[str], None], limit_s: float
) -> None:
    """Run all cases in turn: each five times, then what is not known yet until the limit.

    Raises: CrewFailed.
    """
    begin_s = time.monotonic()
    for number in range(_MOST_ROUNDS):
        todo = [case for case in cases if not case.is_known]
        is_late = time.monotonic() - begin_s > limit_s and number >= NUM_RUNS
        if not todo or is_late:
            break
        say(f"round {number + 1}: {len(todo)} plans")
        for case in todo:
            _run(crew, case)


def _run(crew: Crew, case: Case) -> None:
    ran = crew.run(run, case.plan, case.rate_bytes_s, case.timeline)
    took_s = max(each.took_s for each in ran)
    foreign_s = max(each.busy_s for each in ran) - sum(each.cpu_s for each in ran)
    disturbed = max(0.0, foreign_s) / (took_s * (os.cpu_count() or 1))
    case.runs.append(Run(ranks=tuple(ran), disturbed=disturbed))
    case.order = case.order or next((each.disorder for each in ran if each.disorder), "")
