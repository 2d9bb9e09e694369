"""The children of a supervisor: kept running, and stopped together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from workers.deployment.child import Child, ChildLog, ChildSpec, RestartBudget
from workers.errors import LanewiseError

_logger = logging.getLogger(__name__)
STOP_S = 32.0
# Exit codes of a worker that say: wrong settings, refused by a strict floor, does not fit.
REFUSALS = frozenset({2, 3, 4})


class GaveUp(LanewiseError):
    """A child ended too often; the message ends with its last words."""


class Refused(GaveUp):
    """A worker refused its settings, so another start would end the same way."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Keep the exit code, which becomes the deployment's."""
        super().__init__(message)
        self.exit_code = exit_code


class Family:
    """Starts children and starts them again when they end.

    Invariants: after `stop` none runs, and none is started any more.
    """

    def __init__(
        self,
        log_dir: Path,
        say: Callable[[str], None],
        on_end: Callable[[ChildSpec, int], None],
    ) -> None:
        """Keep logs in `log_dir`; `on_end(spec, pid)` runs in a thread when a child ended."""
        log_dir.mkdir(parents=True, exist_ok=True)
        self._log_dir = log_dir
        self._say = say
        self._on_end = on_end
        self._running: dict[str, Child] = {}
        self._is_stopping = False
        self.is_ready = False

    async def keep(self, spec: ChildSpec) -> None:
        """Run a child until `stop`.

        Raises: GaveUp when it ends too often; Refused when a worker refuses its settings before
            the deployment was ready.
        """
        log = ChildLog(
            self._log_dir / f"{spec.name}.log", lambda line: self._say(f"{spec.name}: {line}")
        )
        budget = RestartBudget()
        while not self._is_stopping:
            code, pid = await self._run_once(spec, log)
            await self._tell_end(spec, pid)
            if self._is_stopping:
                return
            if spec.role and code in REFUSALS and not self.is_ready:
                raise Refused(f"{spec.name} cannot run as set: {_last_words(log)}", code)
            delay_s = budget.next_delay_s(time.monotonic(), is_ready=self.is_ready)
            if delay_s is None:
                raise GaveUp(
                    f"{spec.name} ended again and again, the last time with {_words(code)}; "
                    f"its log {self._log_dir / spec.name}.log ends:\n" + "\n".join(log.tail)
                )
            self._say(f"{spec.name} ended with {_words(code)}; starting it again")
            await asyncio.sleep(delay_s)

    async def stop(self, names: Iterable[str] | None = None, timeout_s: float = STOP_S) -> None:
        """Ask children to end, `names` only or all; kill what still runs after `timeout_s`."""
        self._is_stopping = True
        chosen = set(self._running if names is None else names)
        for name, child in self._running.items():
            if name in chosen:
                child.terminate()
        deadline_s = time.monotonic() + timeout_s
        while chosen & set(self._running):
            if time.monotonic() > deadline_s:
                for name in chosen & set(self._running):
                    self._say(f"{name} did not end in time and is killed")
                    self._running[name].kill()
                deadline_s += timeout_s
            await asyncio.sleep(0.05)

    def names(self) -> list[str]:
        """The children that run now."""
        return list(self._running)

    async def _run_once(self, spec: ChildSpec, log: ChildLog) -> tuple[int, int]:
        try:
            child = await Child.start(spec, log)
        except OSError as error:
            raise GaveUp(f"{spec.name} cannot be started: {error}") from error
        self._running[spec.name] = child
        if self._is_stopping:
            child.terminate()
        try:
            return await child.wait(), child.pid
        finally:
            child.kill()
            del self._running[spec.name]

    async def _tell_end(self, spec: ChildSpec, pid: int) -> None:
        try:
            await asyncio.to_thread(self._on_end, spec, pid)
        except SQLAlchemyError as error:
            _logger.warning("the end of %s cannot be recorded: %s", spec.name, error)


def _last_words(log: ChildLog) -> str:
    """The message of the last error in the log, over all its lines."""
    lines = list(log.tail)
    starts = [n for n, line in enumerate(lines) if " ERROR " in line]
    text = "\n".join(lines[starts[-1] :]) if starts else "\n".join(lines[-1:])
    return text.partition(" ERROR ")[2].partition(": ")[2] or text


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
