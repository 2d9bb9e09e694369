"""Ranks that cannot be brought back end the video worker, in a job and between jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from workers.errors import GroupLost
from workers.processes.video_ranks import RankedEngine


class Engine:
    """An engine whose ranks are lost where it is told to."""

    limits: Any = None

    def __init__(self, *, in_job: bool = False, between: bool = False) -> None:
        self.in_job, self.between = in_job, between
        self.is_closed = False

    def generate(self, request: Any, *, should_stop: Any) -> Iterator[str]:
        yield "one"
        if self.in_job:
            raise GroupLost("rank 1 was lost too often")
        yield "two"

    def tend(self) -> None:
        if self.between:
            raise GroupLost("rank 1 was lost too often")

    def close(self) -> None:
        self.is_closed = True


class Group:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def ranked(engine: Engine) -> tuple[Any, Group, list[str], threading.Event]:
    said: list[str] = []
    ended = threading.Event()

    def end(reason: object) -> None:
        said.append(str(reason))
        ended.set()

    group: Any = Group()
    of_engine: Any = engine
    return RankedEngine(of_engine, group, end), group, said, ended


def test_in_a_job_the_reason_is_told_and_nothing_is_recorded_as_the_job_s_fault() -> None:
    served, _, said, _ = ranked(Engine(in_job=True))
    with pytest.raises(GroupLost):
        list(served.generate(None, should_stop=lambda: False))
    assert said == ["rank 1 was lost too often"]
    served.close()


def test_between_jobs_the_worker_ends_too() -> None:
    served, _, said, ended = ranked(Engine(between=True))
    assert ended.wait(20)
    served.close()
    assert said == ["rank 1 was lost too often"]


def test_closing_ends_the_tender_then_engine_and_ranks() -> None:
    engine = Engine()
    served, group, said, _ = ranked(engine)
    assert list(served.generate(None, should_stop=lambda: False)) == ["one", "two"]
    served.close()
    assert engine.is_closed
    assert group.is_closed
    assert said == []
    assert "rank-tender" not in {thread.name for thread in threading.enumerate()}
