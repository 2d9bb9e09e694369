"""Ranks as processes, and as threads of this one."""

from __future__ import annotations

import multiprocessing
import os
import queue
import runpy
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.collectives.errors import RankStalled
from kernels.collectives.link import Message

RANKS = Path(__file__).parent / "ranks.py"
# Ranks are forked from a server that has imported torch once.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["kernels.collectives.communicator", "kernels.ops.int8_wire.cpu"])


@dataclass
class Crew:
    """A group of processes that run one check after the other."""

    folder: Path
    size: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    script: Path = RANKS
    processes: list[BaseProcess] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)

    def begin(self, ranks: range | None = None) -> Crew:
        """Start the ranks; they are not waited for."""
        for rank in ranks or range(self.size):
            islands = ((0, 1), (2, 3)) if self.size == 4 else ()
            group = {"rank": rank, "size": self.size, "timeout_s": 30.0, "islands": islands}
            group |= {"rendezvous": f"file://{self.folder / 'store'}"}
            group |= {"slot_bytes": 1 << 20, "transports": ("shm", "gloo", "tcp")} | self.options
            ours, theirs = SERVER.Pipe()
            given = {"options": group, "pipe": theirs}
            process = SERVER.Process(
                target=runpy.run_path, args=(str(self.script), given), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        return self

    def start(self) -> Crew:
        """Start the ranks and wait until they have met."""
        self.begin()
        for rank in range(self.size):
            assert self.read(rank) == {"value": "joined"}
        return self

    def run(self, check: str, **arguments: Any) -> list[Any]:
        """The values that each rank's check returned."""
        self.order(check, **arguments)
        answers = [self.read(rank) for rank in range(self.size)]
        errors = [f"rank {r}: {a['error']}" for r, a in enumerate(answers) if "error" in a]
        assert not errors, "\n".join(errors)
        return [answer["value"] for answer in answers]

    def order(self, check: str, **arguments: Any) -> None:
        """Name the check to every rank."""
        for pipe in self.pipes:
            pipe.send((check, arguments))

    def read(self, rank: int) -> dict[str, Any]:
        """The next answer of one rank."""
        return self.pipes[rank].recv()

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to one rank."""
        pid = self.processes[rank].pid
        assert pid
        os.kill(pid, number)

    def end(self) -> None:
        """End the ranks, stopped ones too."""
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Two ranks for many checks."""
    crew = Crew(tmp_path_factory.mktemp("pair"))
    try:
        yield crew.start()
    finally:
        crew.end()


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Four ranks in two islands."""
    crew = Crew(tmp_path_factory.mktemp("four"), size=4)
    try:
        yield crew.start()
    finally:
        crew.end()


@pytest.fixture
def make_crew(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Crews of a test's own, for what breaks them; one rendezvous for all of a test."""
    crews: list[Crew] = []

    def make(size: int = 2, script: Path = RANKS, **options: Any) -> Crew:
        crews.append(Crew(tmp_path, size, options, script))
        return crews[-1]

    yield make
    for crew in crews:
        crew.end()


class LocalLink:
    """A rank's end of links among threads of one process."""

    def __init__(
        self,
        rank: int,
        boxes: Sequence[Sequence[queue.SimpleQueue[torch.Tensor]]],
        timeout_s: float,
    ) -> None:
        self._rank, self._boxes, self._timeout_s = rank, boxes, timeout_s

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self._boxes)

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        """See `kernels.collectives.link.Link`."""
        if outgoing and len(outgoing.values_N):
            self._boxes[self._rank][outgoing.rank].put(outgoing.values_N.clone())
        if incoming and len(incoming.values_N):
            source = incoming.rank
            try:
                arrived_N = self._boxes[source][self._rank].get(timeout=self._timeout_s)
            except queue.Empty:
                raise RankStalled(
                    f"rank {self._rank} waited {self._timeout_s} s for rank {source}", (source,)
                ) from None
            incoming.values_N.copy_(arrived_N)


@pytest.fixture(scope="session")
def in_threads() -> Callable[[int, Callable[[LocalLink], None]], None]:
    """Run a function on the links of `size` ranks, each in a thread."""

    def run(size: int, function: Callable[[LocalLink], None]) -> None:
        boxes = [[queue.SimpleQueue[torch.Tensor]() for _ in range(size)] for _ in range(size)]
        links = [LocalLink(rank, boxes, timeout_s=10) for rank in range(size)]
        with ThreadPoolExecutor(size) as threads:
            list(threads.map(function, links))

    return run
