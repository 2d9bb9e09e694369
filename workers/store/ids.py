"""Ids that sort by the time of their making: prefix + 26 characters of Crockford's base 32."""

from __future__ import annotations

import re
import secrets
import threading

from workers.store.clock import Clock

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_NUM_CHARS = 26
_RANDOM_BITS = 80
_ID = re.compile(r"[A-Za-z]{1,16}[_-][0-9A-HJKMNP-TV-Z]{26}")


class IdSource:
    """Makes ids: 48 bits of milliseconds, then 80 random bits.

    Invariants: ids of one source only grow, also within one millisecond and when the clock is
    set back. Ids of two sources sort by time to the millisecond. Safe to share among threads.
    """

    def __init__(self, clock: Clock) -> None:
        """Take the time from `clock`."""
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def make(self, prefix: str) -> str:
        """A fresh id; `prefix` includes its separator, such as `job_`."""
        now_ms = int(self._clock().timestamp() * 1000)
        fresh = (now_ms << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            same_or_earlier_ms = (fresh >> _RANDOM_BITS) <= (self._last >> _RANDOM_BITS)
            self._last = self._last + 1 if same_or_earlier_ms else fresh
            value = self._last
        chars = [_ALPHABET[(value >> (5 * place)) & 31] for place in range(_NUM_CHARS)]
        return prefix + "".join(reversed(chars))


def looks_like_id(text: str) -> bool:
    """Whether `text` could be an id; what could not never reaches the database."""
    return _ID.fullmatch(text) is not None
