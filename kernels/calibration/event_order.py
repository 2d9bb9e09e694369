"""Whether the executor carries a schedule out in the order of virtual time.

Two checks. `run_clocked` has the executor's own threads run nodes whose work is to wait on a
virtual clock: begin and end of every node must be those of the simulator, exactly. `out_of_order`
looks at a run in real time, whose durations are its own: there, what the schedule orders must
have been in that order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kernels.collectives.schedules.graph import Place, Schedule
from kernels.collectives.schedules.threads import Ran, run_threads
from kernels.collectives.schedules.virtual_time import Timeline

_ARRIVE_S = 20.0


class WrongOrder(AssertionError):
    """The executor began a node that may not begin, or did not begin one that may."""


class _Clock:
    """Lets nodes end in the order of virtual time, once all that may run have begun.

    What may run follows from the schedule's streams and waits alone, not from the simulator.
    """

    def __init__(self, schedule: Schedule, durations_s: dict[Place, float]) -> None:
        self._schedule, self._durations_s = schedule, durations_s
        self._changed = threading.Condition()
        self._arrived: set[Place] = set()
        self._left: set[Place] = set()
        self.spans: dict[Place, tuple[float, float]] = {}
        self._streams = [
            [n.place for n in nodes]
            for rank in schedule.ranks
            for nodes in schedule.streams(rank).values()
        ]

    def wait(self, place: Place) -> None:
        """A node's whole work: come, and go when the clock has reached its end."""
        with self._changed:
            self._arrived.add(place)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: place in self._left, _ARRIVE_S):
                raise WrongOrder(f"{place} was begun and never ended")

    def drive(self) -> None:
        """Advance to the next end until all nodes have ended."""
        ends: dict[Place, float] = {}
        now_s = 0.0
        while len(self._left) < len(self._schedule.nodes):
            expected = self._heads()
            with self._changed:
                here = self._changed.wait_for(
                    lambda expected=expected: expected <= self._arrived - self._left, _ARRIVE_S
                )
                if not here or self._arrived - self._left != expected:
                    raise WrongOrder(
                        f"{self._schedule.name}: may run {sorted(expected)}, runs "
                        f"{sorted(self._arrived - self._left)}"
                    )
            for place in expected - set(ends):
                if self._can_move(place, expected):
                    ends[place] = now_s + self._durations_s[place]
                    self.spans[place] = now_s, ends[place]
            now_s = min(end_s for place, end_s in ends.items() if place not in self._left)
            with self._changed:
                self._left |= {p for p, end_s in ends.items() if end_s == now_s}
                self._changed.notify_all()

    def _heads(self) -> set[Place]:
        """Each stream's next node, where all that it names have ended."""
        heads: set[Place] = set()
        for places in self._streams:
            place = next((p for p in places if p not in self._left), None)
            if place is not None:
                node = self._schedule.by_place[place]
                if all((node.rank, name) in self._left for name in node.after):
                    heads.add(place)
        return heads

    def _can_move(self, place: Place, here: set[Place]) -> bool:
        """A collective moves once it has begun on every rank."""
        node = self._schedule.by_place[place]
        if node.kind != "collective":
            return True
        return all(member.place in here for member in self._schedule.meetings[node.name])


def run_clocked(schedule: Schedule, timeline: Timeline) -> dict[Place, tuple[float, float]]:
    """Begin and end of every node as the executor's threads run it under a virtual clock.

    For schedules of computing and collectives whose transfers share no resource across streams.
    Durations are the timeline's. Raises: WrongOrder.
    """
    durations_s = {span.node.place: span.end_s - span.begin_s for span in timeline.spans}
    clock = _Clock(schedule, durations_s)

    def rank(number: int) -> None:
        own = [n.place for n in schedule.nodes if n.rank == number]
        run_threads(schedule, number, {p[1]: lambda p=p: clock.wait(p) for p in own})

    with ThreadPoolExecutor(len(schedule.ranks)) as threads:
        running = [threads.submit(rank, number) for number in schedule.ranks]
        clock.drive()
        for each in running:
            each.result()
    return clock.spans


def event_order_problem(schedule: Schedule, timeline: Timeline) -> str:
    """Where the executor under a virtual clock leaves the simulator's times; empty where nowhere.

    Ends are compared as they add up in either: to the last bit but a few.
    """
    try:
        spans = run_clocked(schedule, timeline)
    except WrongOrder as error:
        return str(error)
    near = 1e-12 * max(timeline.duration_s, 1.0)
    for span in timeline.spans:
        begin_s, end_s = spans[span.node.place]
        if abs(begin_s - span.begin_s) > near or abs(end_s - span.end_s) > near:
            return (
                f"{schedule.name}: {span.node.place} ran from {begin_s:.9f} to {end_s:.9f} s, "
                f"virtual time says {span.begin_s:.9f} to {span.end_s:.9f} s"
            )
    return ""


def out_of_order(schedule: Schedule, rank: int, run: Sequence[Ran], timeline: Timeline) -> str:
    """The first pair of a rank's nodes that a real run had the wrong way round; else empty.

    Pairs are those that the schedule orders: neighbours on a stream, and a node and what it
    waits for. Virtual time has to agree with them as well.
    """
    real = {ran.node.place: (ran.begin_s, ran.end_s) for ran in run}
    virtual = {s.node.place: (s.begin_s, s.end_s) for s in timeline.spans}
    own = {node.place for node in schedule.nodes if node.rank == rank}
    if set(real) != own:
        return f"{schedule.name}: ran {len(real)} nodes of {len(own)}"
    for place in own:
        for earlier in schedule.before[place]:
            for times in (real, virtual):
                if earlier[0] == rank and times[earlier][1] > times[place][0]:
                    return f"{schedule.name}: {place} began before {earlier} had ended"
    return ""
