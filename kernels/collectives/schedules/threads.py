"""A schedule in real time: a thread for each stream of a rank, with real work in the nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernels.collectives.schedules.graph import Node, Schedule, ScheduleError

Actions = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """When a node ran, in seconds from the start of the schedule.

    `core_s` is how long its thread had a core meanwhile: what the node takes on a quiet machine,
    whoever else ran. Work in a library's further threads is not in it; 0 where nobody looked.
    """

    node: Node
    begin_s: float
    end_s: float
    core_s: float = 0.0


def run_serially(schedule: Schedule, rank: int, actions: Actions) -> list[Ran]:
    """Every node of a rank, one after the other: what an overlapped run must equal.

    Returns and raises as `run_threads`.
    """
    _check(schedule, rank, actions)
    run = _Run(schedule, rank, actions)
    own = (schedule.by_place[place] for place in schedule.order if place[0] == rank)
    run.stream(list(own))
    return run.result()


def run_threads(schedule: Schedule, rank: int, actions: Actions) -> list[Ran]:
    """Carry out a rank's nodes; returns when each ran, in the order of their begin.

    `actions` has one function for each node: computation, or a call of a communicator. Streams
    that communicate at the same time need a communicator each. Transfers on the device's links
    order themselves; `resource` is not enforced here. The stream that computes runs in the
    caller's thread, whose library threads are warm, and every other one in a thread of its own,
    which has ended when this returns.
    Raises: ScheduleError for a node without an action; else what the first failing node raised,
    after every stream has stopped.
    """
    _check(schedule, rank, actions)
    run = _Run(schedule, rank, actions)
    streams = schedule.streams(rank)
    own = _computing(streams)
    threads = [
        threading.Thread(target=run.stream, args=(nodes,), name=f"stream-{name}")
        for name, nodes in streams.items()
        if name != own
    ]
    for thread in threads:
        thread.start()
    run.stream(streams.get(own, []))
    for thread in threads:
        thread.join()
    return run.result()


def _computing(streams: Mapping[str, list[Node]]) -> str:
    computing = (name for name, nodes in streams.items() if nodes[0].kind == "compute")
    return next(computing, next(iter(streams), ""))


def _check(schedule: Schedule, rank: int, actions: Actions) -> None:
    own = {node.name for node in schedule.nodes if node.rank == rank}
    if own != set(actions):
        raise ScheduleError(
            f"{schedule.name} on rank {rank}: nodes without action {sorted(own - set(actions))}, "
            f"actions without node {sorted(set(actions) - own)}"
        )


class _Run:
    def __init__(self, schedule: Schedule, rank: int, actions: Actions) -> None:
        self._schedule, self._rank, self._actions = schedule, rank, actions
        self._begin_s = time.perf_counter()
        self._done: set[str] = set()
        self._changed = threading.Condition()
        self.ran: list[Ran] = []
        self.error: BaseException | None = None

    def result(self) -> list[Ran]:
        if self.error is not None:
            raise self.error
        return sorted(self.ran, key=lambda ran: ran.begin_s)

    def stream(self, nodes: list[Node]) -> None:
        for node in nodes:
            if not self._may_begin(node):
                return
            begin_s, begin_core_s = time.perf_counter() - self._begin_s, time.thread_time()
            try:
                self._actions[node.name]()
            except BaseException as error:  # noqa: BLE001 - raised again by run_threads
                error.add_note(f"in node {node.name} of schedule {self._schedule.name}")
                self._fail(error)
                return
            end_s = time.perf_counter() - self._begin_s
            core_s = time.thread_time() - begin_core_s
            with self._changed:
                self.ran.append(Ran(node=node, begin_s=begin_s, end_s=end_s, core_s=core_s))
                self._done.add(node.name)
                self._changed.notify_all()

    def _may_begin(self, node: Node) -> bool:
        """Wait for the named nodes; false when another stream has failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.error is not None or self._done.issuperset(node.after)
            )
            return self.error is None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
