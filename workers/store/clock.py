"""Time as the store sees it: a function that gives aware UTC datetimes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time of this machine, aware and in UTC."""
    return datetime.now(UTC)
