"""The ranks of a measurement, as the parent sees them."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from benchmarks.overlap.rank import serve

_STOP_S = 10.0


class RankFailed(RuntimeError):
    """A rank reported an error or died; the message says which and what."""


class Crew:
    """Processes that do the same at the same time. A context: the processes end with it."""

    def __init__(self, size: int, folder: Path) -> None:
        """Start them; they have torch and nothing else."""
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, size, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        """The crew."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the ranks, also where they wait for one another."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except BrokenPipeError:
                continue  # it has ended already, which is what was wanted
        for process in self._processes:
            process.join(_STOP_S)
            process.kill()
            process.join()

    def __call__(self, what: str, *arguments: Any) -> list[Any]:  # noqa: ANN401 - pickled
        """What each rank's method returned. Raises: RankFailed."""
        for pipe in self._pipes:
            pipe.send((what, arguments))
        answers: list[tuple[str, Any]] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                answers.append(pipe.recv())
            except EOFError:
                raise RankFailed(f"rank {rank} died during {what!r}") from None
        errors = [text for kind, text in answers if kind == "error"]
        if errors:
            raise RankFailed("; ".join(errors))
        return [value for _, value in answers]
