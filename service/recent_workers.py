"""The workers' rows as read a moment ago, so that not every chat reads the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from workers.protocol import WorkerFacts
from workers.shared_lookup import SharedLookup

RECENT_S = 0.5


class RecentWorkers:
    """Rows for `RECENT_S` seconds, an age that is small beside the time between two beats."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none."""
        self._clock = clock
        self._rows: Sequence[WorkerFacts] = ()
        self._read_s = -RECENT_S
        self._lookups: SharedLookup[str, Sequence[WorkerFacts]] = SharedLookup()

    def rows(self) -> Sequence[WorkerFacts]:
        """The rows, or none when they are too old."""
        return self._rows if self._clock() - self._read_s < RECENT_S else ()

    def keep(self, rows: Sequence[WorkerFacts]) -> None:
        """Take rows that were just read."""
        self._rows, self._read_s = rows, self._clock()

    async def looked_up(
        self, look_up: Callable[[], Coroutine[Any, Any, Sequence[WorkerFacts]]]
    ) -> Sequence[WorkerFacts]:
        """The rows as `look_up` reads them now, for all who ask at once; they are kept."""
        rows = await self._lookups.get("workers", look_up)
        self.keep(rows)
        return rows
