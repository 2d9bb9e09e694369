"""What a run should take: measured computation and links, in virtual time, of the same schedule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.overlap.stages import Stage
from kernels.collectives.schedules.graph import Place, Schedule
from kernels.collectives.schedules.measured import with_durations
from kernels.collectives.schedules.virtual_time import Timeline, simulate
from llm_engine.parallel.overlap import micro_batch_layers, token_split_layers
from llm_engine.parallel.overlap_context import context_split_layers
from llm_engine.parallel.overlap_wire import LinkLine

# A computation's nodes on each rank, by name, from one measurement; several of them.
NodeSeconds = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a step sends. Units: bytes of a token's row in one exchange; tokens; layers."""

    tp_bytes: int
    cp_bytes: int
    num_layers: int
    num_tokens: int

    def wire_bytes(self, stage: Stage) -> int:
        """Of one exchange of the whole step, before the wire's own coding."""
        return self.num_tokens * (self.cp_bytes if stage.split == "cp" else self.tp_bytes)


def schedule_of(stage: Stage, sizes: Sizes, size: int) -> Schedule:
    """The schedule that the stage's ranks carry out, with the bytes of its exchanges."""
    build = micro_batch_layers if stage.num_answers else token_split_layers
    if stage.split == "cp":
        build = context_split_layers
    return build(size, sizes.num_layers, stage.num_chunks, sizes.wire_bytes(stage))


def medians(measured: Sequence[NodeSeconds]) -> dict[Place, float]:
    """Each rank's nodes over several measurements; measured[repetition][rank][name]."""
    ranks = range(len(measured[0]))
    return {
        (rank, name): statistics.median(repetition[rank][name] for repetition in measured)
        for rank in ranks
        for name in measured[0][rank]
    }


def predict(
    stage: Stage, sizes: Sizes, size: int, seconds: Mapping[Place, float], link: LinkLine
) -> Timeline:
    """When every node should run; a stage without overlap does one thing after the other."""
    schedule = with_durations(schedule_of(stage, sizes, size), seconds)
    if not stage.is_overlapped:
        schedule = _on_one_stream(schedule)
    return simulate(schedule, lambda node: link.seconds(node.size_bytes))


def _on_one_stream(schedule: Schedule) -> Schedule:
    """As `run_serially` carries it out: in the schedule's order, whatever the streams."""
    nodes = (schedule.by_place[place] for place in schedule.order)
    return replace(schedule, nodes=tuple(replace(node, stream="one") for node in nodes))
