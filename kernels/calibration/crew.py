"""Two ranks as child processes that carry out one function after the other, with a time limit."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernels.calibration.seat import SIZE

_START_S = 60.0


class CrewFailed(RuntimeError):
    """A rank died, raised, or did not answer in time; the message says which and what."""


class Crew:
    """Both ranks, alive inside `with`. `environment` is the children's whole environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="lanewise-crew-")
        address = str(Path(self._folder.name) / "socket")
        with Listener(address, family="AF_UNIX", backlog=SIZE) as listener:
            for rank in range(SIZE):
                command = [sys.executable, "-m", "kernels.calibration.seat", address, str(rank)]
                self._processes.append(subprocess.Popen(command, env=self._environment))
            self._accept(listener)
        return self

    def _accept(self, listener: Listener) -> None:
        socket = listener._listener._socket  # type: ignore[attr-defined]
        socket.settimeout(_START_S)
        try:
            for _ in range(SIZE):
                pipe = listener.accept()
                self._pipes[pipe.recv()] = pipe
        except (TimeoutError, OSError) as error:
            self.__exit__(None, None, None)
            raise CrewFailed(f"the ranks did not start within {_START_S:g} s: {error}") from error

    def run(
        self, function: Callable[..., Any], *arguments: object, limit_s: float = 60.0
    ) -> list[Any]:
        """function(seat, *arguments) on both ranks; what they return, in order.

        Raises: CrewFailed.
        """
        for pipe in self._pipes.values():
            pipe.send((function, arguments))
        until_s = time.monotonic() + limit_s
        return [self._read(rank, until_s, function.__name__) for rank in range(SIZE)]

    def _read(self, rank: int, until_s: float, doing: str) -> object:
        pipe = self._pipes[rank]
        try:
            if not pipe.poll(max(0.0, until_s - time.monotonic())):
                raise CrewFailed(f"rank {rank} did not finish {doing} in time")
            kind, value = pipe.recv()
        except EOFError as error:
            raise CrewFailed(f"rank {rank} died during {doing}") from error
        if kind == "error":
            raise CrewFailed(f"rank {rank} failed during {doing}:\n{value}")
        return value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes:
            try:
                process.wait(timeout=2.0 if kind is None else 0.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
