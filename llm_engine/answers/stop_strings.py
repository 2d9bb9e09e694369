"""Finding stop strings in a growing text, without ever showing a part of one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that may be shown now, and whether a stop string ended the answer."""

    text: str
    is_stopped: bool


class StopMatcher:
    """Cuts a text before the stop string that completes first; among equals, the longest.

    The result depends on the text only, never on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, is_shown: bool = False) -> None:
        """Watch for these strings, none of them empty; `is_shown` cuts behind them instead."""
        assert all(stops)
        self._stops = tuple(stops)
        self._is_shown = is_shown
        self._held = ""

    def push(self, text: str) -> StopResult:
        """Take the next piece; hold back its tail while it may begin a stop string."""
        if not self._stops:
            return StopResult(text, is_stopped=False)
        self._held += text
        matches = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if matches:
            end, start = min(matches)
            shown, self._held = self._held[: end if self._is_shown else start], ""
            return StopResult(shown, is_stopped=True)
        cut = len(self._held) - self._num_pending()
        shown, self._held = self._held[:cut], self._held[cut:]
        return StopResult(shown, is_stopped=False)

    def flush(self) -> str:
        """The text held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _num_pending(self) -> int:
        """Length of the longest tail that is the beginning of some stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
