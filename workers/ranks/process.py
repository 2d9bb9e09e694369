"""One follower as a child process: started, watched by descriptor, killed and reaped."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterable, Sequence

from workers.ranks.order import RankOrder


class RankProcess:
    """A running follower. Its output goes where this process's goes."""

    def __init__(self, command: Sequence[str], order: RankOrder) -> None:
        """Start it.

        Raises: OSError when it cannot be started.
        """
        self.rank = order.rank
        descriptors = (order.mail_descriptor, order.bell_descriptor, order.beat_descriptor)
        self._process = subprocess.Popen(
            [*command, order.to_json()], stdin=subprocess.DEVNULL, pass_fds=descriptors
        )
        # Held open until reaped, so the number cannot come to mean another process.
        self._descriptor = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, a signal's number negated, None while it runs."""
        return self._process.poll()

    @property
    def descriptor(self) -> int:
        """Readable once the process has ended."""
        return self._descriptor

    def kill(self) -> None:
        """End it at once, stopped or not."""
        self._process.kill()

    def reap(self) -> int:
        """Wait for its end and forget it; the exit code."""
        code = self._process.wait()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        return code


def any_ended(processes: Iterable[RankProcess], timeout_s: float) -> bool:
    """Wait until one of them has ended, at most so long."""
    poll = select.poll()
    for process in processes:
        poll.register(process.descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))


def end_all(processes: Sequence[RankProcess], grace_s: float) -> None:
    """Let processes end by themselves for so long, then kill what is left; reap all."""
    deadline_s = time.monotonic() + grace_s
    while (left := [p for p in processes if p.code is None]) and time.monotonic() < deadline_s:
        any_ended(left, min(0.05, grace_s))
    for process in processes:
        if process.code is None:
            process.kill()
        process.reap()
