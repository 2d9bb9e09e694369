"""Predict, run, compare: every plan of every toy at three link rates that were not measured."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kernels.calibration.crew import Crew
from kernels.calibration.drift import drift
from kernels.calibration.event_order import event_order_problem
from kernels.calibration.table import Calibration
from kernels.calibration.timing import spread_of
from kernels.calibration.together import predict
from kernels.collectives.schedules.graph import Schedule
from workers.planning.validation.layouts import layouts_of
from workers.planning.validation.report import Report, Row
from workers.planning.validation.rounds import Case, run_rounds
from workers.planning.validation.running import check
from workers.planning.validation.step import Plan
from workers.planning.validation.toys import TOYS, Toy
from workers.planning.validation.tracing import trace, with_seconds

# Links on which the wire takes about a third, as much, and three times as long as computing.
RATIOS = (1 / 3, 1.0, 3.0)


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
    begin_s, load = time.monotonic(), os.getloadavg()[0]
    predicted = [
        _predicted(plan, calibration, round(calibration.balance_bytes_s * ratio) * 1.0)
        for ratio in RATIOS
        for plan in plans_of(toys)
    ]
    cases = [case for case, _ in predicted]
    say(f"{len(cases)} predictions")
    drifted = drift(crew, calibration)
    for case in cases:
        crew.run(check, case.plan, case.rate_bytes_s)
    run_rounds(crew, cases, say, limit_s)
    return Report(
        rows=tuple(_row(*each) for each in predicted),
        machine=machine,
        calibrated=calibration.made,
        calibration_disturbed=calibration.disturbed,
        load=load,
        drift=drifted,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - begin_s, 1),
    )


def _predicted(plan: Plan, calibration: Calibration, rate_bytes_s: float) -> tuple[Case, Schedule]:
    """The plan with its prediction, and its schedule with the seconds of computing."""
    if rate_bytes_s in calibration.seen_bytes_s:
        raise ValueError(f"{rate_bytes_s} B/s was measured by the calibration itself")
    schedule, works = trace(plan)
    timed = with_seconds(schedule, works, calibration)
    timeline = predict(timed, calibration, rate_bytes_s)
    return Case(plan, rate_bytes_s, timeline, event_order_problem(schedule, timeline)), timed


def _row(case: Case, schedule: Schedule) -> Row:
    assert case.timeline is not None  # every case of a validation is predicted first
    computing = [node for node in schedule.nodes if node.kind == "compute"]
    names = {node.name for node in computing}
    return Row(
        group=case.plan.toy.name,
        plan=case.plan.name,
        rate_bytes_s=case.rate_bytes_s,
        predicted_s=case.timeline.duration_s,
        measured_s=statistics.median(case.times_s),
        predicted_core_s=max(
            sum(node.duration_s for node in computing if node.rank == rank)
            for rank in schedule.ranks
        ),
        measured_core_s=statistics.median(run.core_s(names) for run in case.counted),
        spread=spread_of(case.times_s),
        num_runs=len(case.times_s),
        disturbed=case.disturbed,
        order=case.order,
    )
