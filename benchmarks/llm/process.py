"""The parent's end of an engine process: start, order, time out, end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT

_STOP_S = 5.0
_TAIL_BYTES = 2000


class EngineAbsent(Exception):
    """The engine cannot run on this machine; the message says why."""


class EngineFailed(Exception):
    """The process died, ran out of time or reported an error; it is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start an engine: interpreter, module, options (JSON), further environment."""

    python: str
    module: str
    options: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def line(self) -> list[str]:
        """The command line; `env` adds to what is inherited."""
        added = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *added, self.python, "-u", "-m", self.module, json.dumps(self.options)]


class EngineProcess:
    """A running engine.

    Invariants: after EngineFailed or `stop` no process of it is left; `log` keeps what it printed.
    """

    def __init__(self, command: Command, log: Path) -> None:
        """Start it; nothing is loaded yet."""
        self._log = log
        self._unread = b""
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command.line(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stderr, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, do: str, *, timeout_s: float, **order: Any) -> Any:  # noqa: ANN401 - JSON
        """Give an order and wait for its answer.

        Raises: EngineAbsent, EngineFailed.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._line(do, time.monotonic() + timeout_s))
        except BrokenPipeError:
            raise self._failed(f"ended before {do!r}") from None
        except KeyboardInterrupt:
            self.stop()
            raise
        if "absent" in answer:
            self.stop()
            raise EngineAbsent(answer["absent"])
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer["ok"]

    def stop(self) -> None:
        """End the process and whatever it started."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended already, which is what was wanted
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self, do: str, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise self._failed(f"{do!r} took longer than its limit", kill=True)
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                raise self._failed(f"died during {do!r}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _failed(self, what: str, *, kill: bool = False) -> EngineFailed:
        if kill:
            os.killpg(self._process.pid, 9)
        self.stop()
        tail = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        last = tail.splitlines()[-1] if tail else "it printed nothing"
        return EngineFailed(f"{what} (exit {self._process.returncode}; last line: {last[:300]})")
