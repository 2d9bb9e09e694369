"""Stopping on request: a question that is asked at every step and stage border."""

from __future__ import annotations

from collections.abc import Callable

from video_engine.errors import Interrupted

StopCheck = Callable[[], bool]


def never() -> bool:
    """The answer of a caller who does not want to stop."""
    return False


def stop_if(should_stop: StopCheck, where: str) -> None:
    """Go on, or raise Interrupted with the place where it stopped."""
    if should_stop():
        raise Interrupted(f"stopped {where}")
