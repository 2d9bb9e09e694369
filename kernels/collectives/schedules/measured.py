"""From runs to predictions: durations that were measured, put into a schedule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernels.collectives.schedules.graph import Place, Schedule, ScheduleError
from kernels.collectives.schedules.threads import Ran


def with_durations(schedule: Schedule, seconds: Mapping[Place, float]) -> Schedule:
    """The same schedule with these durations of its computation.

    Raises: ScheduleError naming a node of computation without one.
    """
    missing = [
        node.place
        for node in schedule.nodes
        if node.kind == "compute" and node.place not in seconds
    ]
    if missing:
        raise ScheduleError(f"{schedule.name}: no duration was measured for {missing[:6]}")
    nodes = tuple(
        replace(node, duration_s=seconds[node.place]) if node.kind == "compute" else node
        for node in schedule.nodes
    )
    return replace(schedule, nodes=nodes)


def median_seconds(runs: Sequence[Sequence[Ran]]) -> dict[str, float]:
    """The median duration of each node of one rank over several runs of a schedule."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for ran in run:
            found.setdefault(ran.node.name, []).append(ran.end_s - ran.begin_s)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def duration_s(run: Sequence[Ran]) -> float:
    """From the first begin to the last end of a run."""
    return max(ran.end_s for ran in run) - min(ran.begin_s for ran in run)
