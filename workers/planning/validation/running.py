"""One rank's side of running plans: real computing, the real communicator, the same schedule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.calibration.event_order import out_of_order
from kernels.calibration.seat import Seat, busy_s, cpu_s
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.threads import Actions, run_threads
from kernels.collectives.schedules.threads import Ran as NodeRan
from kernels.collectives.schedules.virtual_time import Timeline
from workers.planning.validation.chain import Action, Segment
from workers.planning.validation.layouts import AnyStep, build, weights_for
from workers.planning.validation.ops import RealOps
from workers.planning.validation.step import Plan, Share
from workers.planning.validation.toys import Weights

# Sums in another order: of a few hundred terms, in float32.
_TOLERANCE = 2e-3


@dataclass(frozen=True, slots=True)
class NodeRun:
    """When a node ran, on the clock that all processes share, and how long it had a core."""

    name: str
    begin_s: float
    end_s: float
    core_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of a plan on one rank.

    `took_s` from the common begin to this rank's end; `cpu_s` of this process; `busy_s` of all
    processors meanwhile. `disorder` names two nodes that ran the wrong way round, if any did.
    `nodes` are those of the rank, in the order of their begin.
    """

    took_s: float
    cpu_s: float
    busy_s: float
    disorder: str
    nodes: tuple[NodeRun, ...]


def check(seat: Seat, plan: Plan, rate_bytes_s: float) -> float:
    """Run a plan once; the largest relative difference from the first plan of its toy.

    Raises: ValueError where ranks' sharing changed what the layers compute.
    """
    step, whole = _built(seat, plan, rate_bytes_s)
    run_threads(whole.schedule, seat.rank, _in_inference(whole.actions))
    rows, values = step.result()
    key = f"reference {plan.toy.name}"
    if key not in seat.memory:
        whole_TC = torch.empty(plan.toy.num_tokens, plan.toy.channels)
        whole_TC[rows] = values
        seat.memory[key] = whole_TC
    reference = seat.memory[key][rows]
    off = float((values - reference).abs().max() / reference.abs().max())
    if not off < _TOLERANCE:
        raise ValueError(f"{plan.name}: differs by {off:.2g} from one that must compute the same")
    return off


def run(seat: Seat, plan: Plan, rate_bytes_s: float, timeline: Timeline | None) -> Ran:
    """Run a plan once and compare the order of its nodes with virtual time's, if that is given."""
    _, whole = _built(seat, plan, rate_bytes_s)
    communicator = seat.communicator(rate_bytes_s)
    actions = _in_inference(whole.actions)
    communicator.barrier()
    begin_s, begin_cpu_s, begin_busy_s = time.perf_counter(), cpu_s(), busy_s()
    ran = run_threads(whole.schedule, seat.rank, actions)
    took_s, used_s, all_s = time.perf_counter() - begin_s, cpu_s(), busy_s()
    return Ran(
        took_s=took_s,
        cpu_s=used_s - begin_cpu_s,
        busy_s=all_s - begin_busy_s,
        disorder=_disorder(whole.schedule, seat.rank, ran, timeline),
        nodes=tuple(
            NodeRun(r.node.name, begin_s + r.begin_s, begin_s + r.end_s, r.core_s) for r in ran
        ),
    )


def _built(seat: Seat, plan: Plan, rate_bytes_s: float) -> tuple[AnyStep, Segment]:
    key = f"weights {plan.toy.name} {plan.layout}"
    if key not in seat.memory:
        seat.memory[key] = weights_for(plan.toy, plan.layout, seat.rank, "cpu")
    weights: list[Weights] = seat.memory[key]
    wire = seat.communicator(rate_bytes_s)
    share = Share(rank=seat.rank, ops=RealOps(), wire=wire, weights=weights, device="cpu")
    return build(plan, share)


def _in_inference(actions: Actions) -> dict[str, Action]:
    """Inference mode belongs to a thread, and streams have threads of their own."""

    def wrapped(action: Action) -> Action:
        def call() -> None:
            with torch.inference_mode():
                action()

        return call

    return {name: wrapped(action) for name, action in actions.items()}


def _disorder(
    schedule: Schedule, rank: int, ran: Sequence[NodeRan], timeline: Timeline | None
) -> str:
    if timeline is None:
        return ""
    return out_of_order(replace(schedule, name=f"real run of {schedule.name}"), rank, ran, timeline)
