"""Schedules one after the other, each with what its nodes do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernels.calibration.seat import SIZE
from kernels.collectives.schedules.graph import Node, Schedule, on_all_ranks

Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Segment:
    """A schedule of both ranks and this rank's actions by name of node."""

    schedule: Schedule
    actions: Mapping[str, Action]


def serial(pieces: Sequence[tuple[str, str, Action]]) -> Segment:
    """(name, operation, action) in turn; an empty operation computes."""
    nodes: list[Node] = []
    for name, operation, _ in pieces:
        nodes.append(
            Node(
                name=name,
                rank=0,
                stream="wire" if operation else "compute",
                kind="collective" if operation else "compute",
                operation=operation,
                after=(nodes[-1].name,) if nodes else (),
                resource="wire",
            )
        )
    schedule = on_all_ranks("serial", SIZE, nodes)
    return Segment(schedule, {name: action for name, _, action in pieces})


def chained(name: str, segments: Sequence[Segment]) -> Segment:
    """One schedule of all: what nothing in a segment precedes waits for the segment before."""
    nodes: list[Node] = []
    actions: dict[str, Action] = {}
    last: tuple[str, ...] = ()
    for number, segment in enumerate(segments):
        own = [node for node in segment.schedule.nodes if node.rank == 0]
        for node in own:
            after = tuple(f"{number}.{earlier}" for earlier in node.after) or last
            nodes.append(replace(node, name=f"{number}.{node.name}", after=after))
        awaited = {earlier for node in own for earlier in node.after}
        last = tuple(f"{number}.{node.name}" for node in own if node.name not in awaited)
        actions |= {f"{number}.{own_name}": a for own_name, a in segment.actions.items()}
    return Segment(on_all_ranks(name, SIZE, nodes), actions)
