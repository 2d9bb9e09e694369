"""From runs to predictions: durations that were measured, put into a schedule."""

from __future__ import annotations

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


def core_seconds(run: Sequence[Ran]) -> dict[str, float]:
    """What each computation of a rank's run took of a core, by the node's name."""
    return {ran.node.name: ran.core_s for ran in run if ran.node.kind == "compute"}


def duration_s(run: Sequence[Ran]) -> float:
    """From the first begin to the last end of a run."""
    return max(ran.end_s for ran in run) - min(ran.begin_s for ran in run)
