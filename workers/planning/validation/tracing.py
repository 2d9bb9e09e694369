"""A plan's schedule with predicted seconds: its own actions, on tensors that have only shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.calibration.seat import SIZE
from kernels.calibration.table import Calibration
from kernels.calibration.work import Work
from kernels.collectives.schedules.graph import Node, Place, Schedule
from workers.planning.validation.layouts import build, weights_for
from workers.planning.validation.ops import TracingOps
from workers.planning.validation.step import Plan, Share


class TracingWire:
    """The communicator's operations on shapes; writes down the bytes that each counts."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See `kernels.collectives.protocol.Communicator`."""
        self.size_bytes = x.nbytes
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """See the protocol; ranks have equal parts here."""
        self.size_bytes = SIZE * x.nbytes
        return x.new_empty(SIZE * len(x), *x.shape[1:])

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """See the protocol."""
        self.size_bytes = x.nbytes
        return x.new_empty(len(x) // SIZE, *x.shape[1:])

    def all_to_all(self, x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """See the protocol; what arrives is as much as what leaves here."""
        self.size_bytes = x.nbytes
        return x.new_empty(len(x), *x.shape[1:]), list(sizes)


def trace(plan: Plan) -> tuple[Schedule, dict[Place, list[Work]]]:
    """The plan's schedule with the bytes of its collectives, and every computing node's works."""
    works: dict[Place, list[Work]] = {}
    size_bytes: dict[Place, int] = {}
    schedule: Schedule | None = None
    for rank in range(SIZE):
        ops, wire = TracingOps(), TracingWire()
        weights = weights_for(plan.toy, plan.layout, rank, "meta")
        share = Share(rank=rank, ops=ops, wire=wire, weights=weights, device="meta")
        _, whole = build(plan, share)
        schedule = whole.schedule
        for owner, name in whole.schedule.order:
            if owner != rank:
                continue
            ops.works, wire.size_bytes = [], 0
            whole.actions[name]()
            works[owner, name], size_bytes[owner, name] = ops.works, wire.size_bytes
    assert schedule is not None
    nodes = tuple(replace(node, size_bytes=size_bytes[node.place]) for node in schedule.nodes)
    return replace(schedule, nodes=nodes), works


def with_seconds(
    schedule: Schedule, works: dict[Place, list[Work]], calibration: Calibration
) -> Schedule:
    """The schedule with what the calibration says of its computing.

    Raises: ValueError where the very work was calibrated on: that would predict nothing.
    """
    seen = [w for own in works.values() for w in own if calibration.has_seen(w)]
    if seen:
        raise ValueError(f"{schedule.name}: {seen[0]} was measured by the calibration itself")

    def timed(node: Node) -> Node:
        if node.kind != "compute":
            return node
        took_s = calibration.in_steps.computing_s(*alone_s(works[node.place], calibration))
        return replace(node, duration_s=took_s)

    return replace(schedule, nodes=tuple(timed(node) for node in schedule.nodes))


def alone_s(works: Sequence[Work], calibration: Calibration) -> tuple[float, float]:
    """Seconds of the works' calls, and of the rest of them, each in a loop of its own."""
    calls_s = sum(calibration.call_s(work) for work in works)
    return calls_s, sum(calibration.seconds(work) for work in works) - calls_s
