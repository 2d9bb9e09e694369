"""The workers' rows as read a moment ago, so that not every chat reads the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from workers.protocol import WorkerFacts

RECENT_S = 0.5


class RecentWorkers:
    """Rows for `RECENT_S` seconds, an age that is small beside the time between two beats."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none."""
        self._clock = clock
        self._rows: Sequence[WorkerFacts] = ()
        self._read_s = -RECENT_S

    def rows(self) -> Sequence[WorkerFacts]:
        """The rows, or none when they are too old."""
        return self._rows if self._clock() - self._read_s < RECENT_S else ()

    def keep(self, rows: Sequence[WorkerFacts]) -> None:
        """Take rows that were just read."""
        self._rows, self._read_s = rows, self._clock()
