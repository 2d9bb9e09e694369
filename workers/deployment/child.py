"""A child process of the supervisor: its group, its log, and how often it may come back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.parent import parent_death_signal

_CHUNK_BYTES = 65_536
_MAX_LINE_BYTES = 4_096
_MAX_LOG_BYTES = 10 * 2**20
_NUM_TAIL_LINES = 20
_WORTH_SHOWING = re.compile(r" (WARNING|ERROR|CRITICAL) [\w.]+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run. `role` is set for workers, whose row is forgotten when they end."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    role: str = ""


class RestartBudget:
    """How long to wait before the next start: growing within a minute, and bounded.

    Before the deployment was ready once, a failing child may come back twice: what fails at the
    first start mostly fails for good.
    """

    def __init__(self, max_per_minute: int = 5, max_before_ready: int = 2) -> None:
        self._max_per_minute = max_per_minute
        self._max_before_ready = max_before_ready
        self._starts_s: deque[float] = deque()

    def next_delay_s(self, now_s: float, *, is_ready: bool) -> float | None:
        """Seconds to wait, or None to give up."""
        while self._starts_s and now_s - self._starts_s[0] >= 60:
            self._starts_s.popleft()
        num_recent = len(self._starts_s)
        if num_recent >= (self._max_per_minute if is_ready else self._max_before_ready):
            return None
        self._starts_s.append(now_s)
        return min(0.5 * 2**num_recent, 10.0)


class ChildLog:
    """A child's output: a file that is rotated once by size, and the last lines in memory."""

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        """Append to `path`; `show` gets the lines that people should see at once."""
        path.touch()
        self._path = path
        self._show = show
        self._rest = b""
        self._is_broken = False
        self.tail: deque[str] = deque(maxlen=_NUM_TAIL_LINES)

    def write(self, chunk: bytes) -> None:
        """Keep a piece of output; a disk that is full costs the file, never the child."""
        try:
            self._append(chunk)
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                self._show(f"cannot write {self._path}: {error}")
            self._is_broken = True
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest[:_MAX_LINE_BYTES]
        for line in lines:
            self._keep(line[:_MAX_LINE_BYTES].decode(errors="replace").rstrip())

    def _append(self, chunk: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size > _MAX_LOG_BYTES:
            self._path.replace(self._path.with_suffix(".log.1"))
        with self._path.open("ab") as stream:
            stream.write(chunk)

    def _keep(self, line: str) -> None:
        self.tail.append(line)
        if _WORTH_SHOWING.search(line):
            self._show(line)


class Child:
    """One run of a child, in a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process, log: ChildLog) -> None:
        """Take a started process; `start` is the usual way here."""
        self._process = process
        self._log = log
        self._copying = asyncio.create_task(self._copy())

    @classmethod
    async def start(cls, spec: ChildSpec, log: ChildLog) -> Child:
        """Start the command; its output goes to `log`.

        Raises: OSError when it cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *spec.command,
            env=dict(spec.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=parent_death_signal(),
        )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """The exit code, once the process has ended; what it left in its group is killed."""
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)
        await asyncio.wait([self._copying], timeout=2)
        self._copying.cancel()
        return code

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.is_running:
            self._process.terminate()

    def kill(self) -> None:
        """End the whole group at once."""
        if self.is_running:
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    async def _copy(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while chunk := await stream.read(_CHUNK_BYTES):
            self._log.write(chunk)
