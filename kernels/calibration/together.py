"""Virtual time on a processor, where talking takes computing's core and computing slows talking."""

from __future__ import annotations

from dataclasses import replace

from kernels.calibration.table import Calibration
from kernels.calibration.talking import link_s
from kernels.collectives.schedules.graph import Node, Place, Schedule
from kernels.collectives.schedules.virtual_time import Span, Timeline, simulate

# Durations settle within a few rounds: what overlaps changes little once the first is known.
_ROUNDS = 6


def predict(schedule: Schedule, calibration: Calibration, rate_bytes_s: float) -> Timeline:
    """When every node runs, with what computing and talking at the same time cost each other.

    Nodes hold the seconds of computing in a step without talking. Each round adds to a node what
    those lose to it that it overlapped with in the round before, in proportion to the overlapped
    share.
    """
    added: dict[Place, float] = {}
    timeline = _simulated(schedule, calibration, rate_bytes_s, added)
    for _ in range(_ROUNDS):
        added = _losses(timeline, calibration)
        timeline = _simulated(schedule, calibration, rate_bytes_s, added)
    return timeline


def exchange_s(node: Node, calibration: Calibration, rate_bytes_s: float) -> float:
    """A collective of a step while its ranks do nothing else."""
    terms = 1.0, float(node.size_bytes)
    over_s = calibration.wire[node.operation].seconds(terms)
    together_s = link_s(node.operation, node.size_bytes, rate_bytes_s) + over_s
    return calibration.in_steps.meeting_s(together_s)


def _simulated(
    schedule: Schedule, calibration: Calibration, rate_bytes_s: float, added: dict[Place, float]
) -> Timeline:
    nodes = tuple(
        replace(node, duration_s=node.duration_s + added.get(node.place, 0.0))
        if node.kind == "compute"
        else node
        for node in schedule.nodes
    )
    return simulate(
        replace(schedule, nodes=nodes),
        lambda node: exchange_s(node, calibration, rate_bytes_s) + added.get(node.place, 0.0),
    )


def _losses(timeline: Timeline, calibration: Calibration) -> dict[Place, float]:
    added: dict[Place, float] = {}
    for talk in (s for s in timeline.spans if s.node.kind == "collective"):
        terms = 1.0, float(talk.node.size_bytes)
        name = talk.node.operation
        lost_s = calibration.computing_lost[name].seconds(terms)
        busy_s = calibration.wire_busy[name].seconds(terms)
        longer_s = max(0.0, busy_s - calibration.wire[name].seconds(terms))
        for work in timeline.spans:
            if work.node.kind != "compute" or work.node.rank != talk.node.rank:
                continue
            share = _overlap_s(work, talk) / max(talk.end_s - talk.begin_s, 1e-12)
            for place, more_s in ((work.node.place, lost_s), (talk.node.place, longer_s)):
                added[place] = added.get(place, 0.0) + share * more_s
    return added


def _overlap_s(a: Span, b: Span) -> float:
    return max(0.0, min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s))
