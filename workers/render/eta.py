"""How long a job will still take, from how long its percents took so far."""

from __future__ import annotations

import time
from collections.abc import Callable

_MIN_PERCENT = 1.0


class Eta:
    """Seconds left of a job whose progress is told in percent of the whole.

    Within a stage its own pace counts once two of its steps are known; before that, the pace
    since the start.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start counting now."""
        self._clock_s = clock_s
        self._started_s = clock_s()
        self._stage = ""
        self._stage_started_s = self._started_s
        self._stage_percent = 0.0

    def seconds_left(self, stage: str, step: int, percent: float) -> float | None:
        """The estimate after this event; None while too little is known."""
        now_s = self._clock_s()
        if stage != self._stage:
            self._stage, self._stage_started_s, self._stage_percent = stage, now_s, percent
        spent_s, gained = now_s - self._stage_started_s, percent - self._stage_percent
        if step < 2 or gained < _MIN_PERCENT:
            spent_s, gained = now_s - self._started_s, percent
        if gained < _MIN_PERCENT:
            return None
        return round(spent_s / gained * max(100.0 - percent, 0.0), 1)
