"""Ranks as threads of one process: exchanges through a list, for tests of arithmetic and order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from kernels.collectives.group import Group

WAIT_S = 60.0


class Meeting:
    """Where the threads of one group put what they exchange."""

    def __init__(self, size: int) -> None:
        self.box: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=WAIT_S)


class ThreadCommunicator:
    """The part of a communicator that a divided model uses; see the protocol."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        size = len(meeting.box)
        self.group = Group(rank=rank, size=size, rendezvous="file:///threads")
        self.calls: list[tuple[str, str]] = []
        self.is_closed = False

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange("all_gather", x))

    def all_to_all(
        self, x: torch.Tensor, sizes: list[int], *, contract: str = "exact"
    ) -> tuple[torch.Tensor, list[int]]:
        sent = self._exchange("all_to_all", list(x.split(sizes)), contract)
        mine = [parts[self.group.rank] for parts in sent]
        return torch.cat(mine), [len(part) for part in mine]

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(self._exchange("broadcast", x.clone())[0])

    def close(self) -> None:
        self.is_closed = True

    def _exchange(self, what: str, value: Any, contract: str = "exact") -> list[Any]:
        assert not self.is_closed
        self.calls.append((what, contract))
        meeting = self._meeting
        meeting.box[self.group.rank] = value
        meeting.barrier.wait()
        found = list(meeting.box)
        meeting.barrier.wait()  # nobody puts the next value before all have taken this one
        return found


class ThreadWorld:
    """Groups of threads, found by their ranks and name."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._meetings: dict[Any, Meeting] = {}
        self._lock = threading.Lock()

    def communicator(self, rank: int) -> ThreadCommunicator:
        return self.join_part_of(rank, range(self.size), "world")

    def join_part_of(self, rank: int, ranks: Any, name: str) -> ThreadCommunicator:
        with self._lock:
            meeting = self._meetings.setdefault((tuple(ranks), name), Meeting(len(ranks)))
        return ThreadCommunicator(meeting, list(ranks).index(rank))

    def join_part(self, world: Any, ranks: Any, name: str) -> ThreadCommunicator:
        return self.join_part_of(world.group.rank, ranks, name)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returns on each rank; the first error of any is raised."""
        found: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                with torch.no_grad():
                    found[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)
                with self._lock:
                    for meeting in self._meetings.values():
                        meeting.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        for error in real or errors:
            raise error
        return found


class QueueRanks:
    """Rank 0's way to followers that are threads; see `video_engine.parallel.ranks.Ranks`."""

    is_broken = False

    def __init__(self, communicator: ThreadCommunicator, boxes: list[queue.Queue[bytes]]) -> None:
        self.communicator = communicator
        self.boxes = boxes
        self.num_sent = 0

    def send(self, data: bytes) -> None:
        self.num_sent += 1
        for box in self.boxes:
            box.put(data)

    def stop(self) -> None:
        for box in self.boxes:
            box.put(b"")

    def expect(self, duration_s: float | None) -> None:
        assert duration_s is None or duration_s > 0

    def window(self, bound_s: float) -> AbstractContextManager[None]:
        assert bound_s > 0
        return nullcontext()

    def renew(self, rejoin: Callable[[], None], error: BaseException | None = None) -> None:
        raise AssertionError(f"threads are not lost: {error}") from error
