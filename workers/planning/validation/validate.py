"""Predict, run, compare: every plan of every toy at three link rates that were not measured."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kernels.calibration.crew import Crew
from kernels.calibration.event_order import event_order_problem
from kernels.calibration.table import Calibration
from kernels.calibration.together import predict
from kernels.collectives.schedules.virtual_time import Timeline
from workers.planning.validation.layouts import layouts_of
from workers.planning.validation.report import QUIET_RATIO, Report, Row
from workers.planning.validation.running import check, run
from workers.planning.validation.step import Plan
from workers.planning.validation.toys import TOYS, Toy
from workers.planning.validation.tracing import trace, with_seconds

# Links on which the wire takes about a third, as much, and three times as long as computing.
RATIOS = (1 / 3, 1.0, 3.0)
NUM_RUNS = 5
_MOST_ROUNDS = 12


@dataclass(slots=True)
class _Case:
    """A plan at a rate: its prediction, made before any run, and its runs."""

    plan: Plan
    rate_bytes_s: float
    timeline: Timeline
    order: str
    runs: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    @property
    def num_quiet(self) -> int:
        return sum(disturbed <= QUIET_RATIO for disturbed, _ in self.runs)


def plans_of(toys: Sequence[Toy]) -> list[Plan]:
    """Every layout and step size of every toy."""
    return [
        Plan(toy=toy, layout=layout, chunk=chunk)
        for toy in toys
        for chunk in toy.chunks
        for layout in layouts_of(toy)
    ]


def validate(
    crew: Crew,
    calibration: Calibration,
    machine: str,
    say: Callable[[str], None],
    *,
    limit_s: float,
    toys: Sequence[Toy] = TOYS,
) -> Report:
    """Predict all, check that all layouts of a toy compute the same, then run in rounds.

    Whether a run counts depends on what other programs used meanwhile, never on its time.
    Raises: CrewFailed; ValueError where a prediction would rest on the very sizes it predicts.
    """
    begin_s = time.monotonic()
    cases = [
        _predicted(plan, calibration, round(calibration.balance_bytes_s * ratio) * 1.0)
        for ratio in RATIOS
        for plan in plans_of(toys)
    ]
    say(f"{len(cases)} predictions")
    for case in cases:
        crew.run(check, case.plan, case.rate_bytes_s)
    for number in range(_MOST_ROUNDS):
        todo = [case for case in cases if case.num_quiet < NUM_RUNS]
        is_late = time.monotonic() - begin_s > limit_s and number >= NUM_RUNS
        if not todo or is_late:
            break
        say(f"round {number + 1}: {len(todo)} plans")
        for case in todo:
            _run(crew, case)
    return Report(
        rows=tuple(_row(case) for case in cases),
        machine=machine,
        calibrated=calibration.made,
        calibration_disturbed=calibration.disturbed,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - begin_s, 1),
    )


def _predicted(plan: Plan, calibration: Calibration, rate_bytes_s: float) -> _Case:
    if rate_bytes_s in calibration.seen_bytes_s:
        raise ValueError(f"{rate_bytes_s} B/s was measured by the calibration itself")
    schedule, works = trace(plan)
    timeline = predict(with_seconds(schedule, works, calibration), calibration, rate_bytes_s)
    return _Case(plan, rate_bytes_s, timeline, event_order_problem(schedule, timeline))


def _run(crew: Crew, case: _Case) -> None:
    ran = crew.run(run, case.plan, case.rate_bytes_s, case.timeline)
    took_s = max(each.took_s for each in ran)
    foreign_s = max(each.busy_s for each in ran) - sum(each.cpu_s for each in ran)
    disturbed = max(0.0, foreign_s) / (took_s * (os.cpu_count() or 1))
    case.runs.append((disturbed, took_s))
    case.order = case.order or next((each.disorder for each in ran if each.disorder), "")


def _row(case: _Case) -> Row:
    quietest = sorted(case.runs)[:NUM_RUNS]
    times = sorted(took_s for _, took_s in quietest)
    median_s = statistics.median(times)
    return Row(
        group=case.plan.toy.name,
        plan=case.plan.name,
        rate_bytes_s=case.rate_bytes_s,
        predicted_s=case.timeline.duration_s,
        measured_s=median_s,
        spread=(times[-2] - times[1]) / median_s if len(times) >= 4 else 0.0,
        num_runs=len(times),
        disturbed=statistics.median(disturbed for disturbed, _ in quietest),
        order=case.order,
    )
