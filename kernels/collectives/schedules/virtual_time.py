"""A schedule in virtual time: when each node begins and ends if durations and links are as told."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from kernels.collectives.costs import LinkCosts
from kernels.collectives.schedules.graph import Node, Place, Schedule

TransferTime = Callable[[Node], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When a node ran, and the one whose end it had waited for last (None: it began at once)."""

    node: Node
    begin_s: float
    end_s: float
    bound_by: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The spans of all nodes in the order of their begin."""

    spans: tuple[Span, ...]

    @property
    def duration_s(self) -> float:
        """From the first begin to the last end."""
        return max((span.end_s for span in self.spans), default=0.0)

    def span(self, rank: int, name: str) -> Span:
        """The span of one node."""
        return next(s for s in self.spans if s.node.place == (rank, name))

    @property
    def critical_path(self) -> tuple[Span, ...]:
        """The chain of nodes that leaves no gap from the begin to the end."""
        by_place = {span.node.place: span for span in self.spans}
        path = [max(self.spans, key=lambda span: span.end_s)] if self.spans else []
        while path and path[-1].bound_by is not None:
            path.append(by_place[path[-1].bound_by])
        return tuple(reversed(path))

    def busy_s(self, rank: int, kinds: tuple[str, ...] = ("compute",)) -> float:
        """How long a rank does work of these kinds, each counted once."""
        spans = (s for s in self.spans if s.node.rank == rank and s.node.kind in kinds)
        return sum(span.end_s - span.begin_s for span in spans)

    def exposed_s(self, rank: int) -> float:
        """How long a rank has no computation to do before its last node ends."""
        last_s = max(span.end_s for span in self.spans if span.node.rank == rank)
        return last_s - _covered_s([(s.begin_s, s.end_s) for s in self.spans if _computes(s, rank)])


def _computes(span: Span, rank: int) -> bool:
    return span.node.rank == rank and span.node.kind == "compute"


def _covered_s(spans: list[tuple[float, float]]) -> float:
    covered_s = until_s = 0.0
    for begin_s, end_s in sorted(spans):
        covered_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s


def link_time(costs: LinkCosts) -> TransferTime:
    """A transfer takes a + bytes/B: messages and collectives whose bytes are those of one rank."""
    return lambda node: costs.latency_s + node.size_bytes / costs.ring_bytes_s


def simulate(schedule: Schedule, transfer_s: TransferTime) -> Timeline:
    """When every node runs.

    A node begins when all it waits for has ended; a transfer also when its resource is free on
    every rank that takes part, and who could begin first goes first. A collective begins and ends
    on all ranks at once; a receive ends when its message has arrived and its rank is there to
    take it. Exact: no clock, no noise.
    """
    simulation = _Simulation(schedule, transfer_s)
    simulation.run()
    spans = sorted(simulation.spans.values(), key=lambda s: (s.begin_s, s.end_s))
    return Timeline(spans=tuple(spans))


class _Simulation:
    def __init__(self, schedule: Schedule, transfer_s: TransferTime) -> None:
        self._schedule, self._transfer_s = schedule, transfer_s
        self.spans: dict[Place, Span] = {}
        self._free: dict[tuple[int, str], Span] = {}
        self._left = {place: len(set(waits)) for place, waits in schedule.before.items()}
        self._followers: dict[Place, list[Place]] = {}
        for place, waits in schedule.before.items():
            for earlier in set(waits):
                self._followers.setdefault(earlier, []).append(place)
        self._rank_of = {place: index for index, place in enumerate(schedule.order)}
        self._ready: list[tuple[float, int, Place]] = []

    def run(self) -> None:
        """Take nodes by when they could begin, in the schedule's order among equals."""
        for place, count in self._left.items():
            if not count:
                self._push(place)
        while self._ready:
            ready_s, _, place = heapq.heappop(self._ready)
            if place not in self.spans:
                self._put(self._members(place), ready_s)

    def _push(self, place: Place) -> None:
        ends_s = [self.spans[earlier].end_s for earlier in self._schedule.before[place]]
        heapq.heappush(self._ready, (max(ends_s, default=0.0), self._rank_of[place], place))

    def _members(self, place: Place) -> tuple[Node, ...]:
        node = self._schedule.by_place[place]
        return self._schedule.meetings[node.name] if node.kind == "collective" else (node,)

    def _put(self, nodes: tuple[Node, ...], ready_s: float) -> None:
        begin_s, bound_by = ready_s, self._last_awaited(nodes[0])
        for node in nodes:
            busy = self._free.get((node.rank, node.resource))
            if _moves(node) and busy and busy.end_s > begin_s:
                begin_s, bound_by = busy.end_s, busy.node.place
        duration_s = max(self._duration_s(node) for node in nodes)
        for node in nodes:
            span = Span(node=node, begin_s=begin_s, end_s=begin_s + duration_s, bound_by=bound_by)
            self.spans[node.place] = span
            if _moves(node):
                self._free[node.rank, node.resource] = span
        for node in nodes:
            self._release(node.place)

    def _release(self, place: Place) -> None:
        for follower in self._followers.get(place, []):
            self._left[follower] -= 1
            if not self._left[follower]:
                self._push(follower)

    def _last_awaited(self, node: Node) -> Place | None:
        waits = self._schedule.before[node.place]
        return max(waits, key=lambda place: self.spans[place].end_s, default=None)

    def _duration_s(self, node: Node) -> float:
        if node.kind == "receive":
            return 0.0
        return node.duration_s if node.kind == "compute" else self._transfer_s(node)


def _moves(node: Node) -> bool:
    return node.kind in ("collective", "send")
