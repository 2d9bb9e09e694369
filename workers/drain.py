"""The orderly end of a worker: told once, with things that happen if it takes too long."""

from __future__ import annotations

import threading
from collections.abc import Callable

# A worker that has to go lets its answers run for so long, then ends them with an error. Whoever
# passes answers on must outlast this to deliver that end. Units: seconds.
ANSWER_LIMIT_S = 15.0


class Drain:
    """Set when the worker has been told to stop."""

    def __init__(self) -> None:
        """Nothing happens before `start`."""
        self._event = threading.Event()
        self._timers: list[threading.Timer] = []

    @property
    def is_on(self) -> bool:
        """Whether no new work may begin and running work should stop at its next border."""
        return self._event.is_set()

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` `delay_s` seconds after `start`, unless `done` comes first."""
        timer = threading.Timer(delay_s, act)
        timer.daemon = True
        self._timers.append(timer)

    def start(self) -> None:
        """Begin; later calls change nothing. Safe inside a signal handler."""
        if not self._event.is_set():
            self._event.set()
            for timer in self._timers:
                timer.start()

    def done(self) -> None:
        """The worker ended in time."""
        for timer in self._timers:
            timer.cancel()
