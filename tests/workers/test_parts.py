"""Small parts on their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.app import queue_name
from workers.chat.reader import Subscription
from workers.chat.stream import StreamEntry, entry_fields
from workers.deployment.child import ChildLog, RestartBudget
from workers.protocol import ChatDelta, ChatEvent
from workers.render.eta import Eta
from workers.render.progress import ProgressReport


def test_restarts_are_bounded_by_the_minute():
    budget = RestartBudget()
    delays = [budget.next_delay_s(float(n), is_ready=True) for n in range(6)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert budget.next_delay_s(61.0, is_ready=True) is not None


def test_before_ready_two_restarts_are_enough():
    budget = RestartBudget()
    assert [budget.next_delay_s(float(n), is_ready=False) for n in range(3)] == [0.5, 1.0, None]


def test_the_time_left_follows_the_pace_of_the_stage():
    now = [0.0]
    eta = Eta(lambda: now[0])
    assert eta.seconds_left("encode", 0, 0.0) is None
    now[0] = 8.0
    eta.seconds_left("denoise", 0, 10.0)
    now[0] = 10.0
    # Two steps took 2 s and gained 20 percent: 70 percent are left.
    assert eta.seconds_left("denoise", 2, 30.0) == 7.0


@given(st.lists(st.floats(0, 120), max_size=30))
def test_progress_never_falls(percents):
    seen = []
    report = ProgressReport(lambda progress: seen.append(progress.percent))
    for n, percent in enumerate(percents):
        report.step("denoise", n, 30, percent)
    assert seen == sorted(seen)
    assert all(0 <= percent <= 100 for percent in seen)


def entry(number, *texts):
    return "w", number, [ChatDelta(index=0, text=text, num_tokens=1) for text in texts]


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3)))
def test_an_entry_is_read_as_it_was_written(texts):
    parts = [(f"chat-{n}", n, entry(n, *some)[2]) for n, some in enumerate(texts)]
    written = [(i, n, [event.model_dump() for event in events]) for i, n, events in parts]
    fields = {key.encode(): value.encode() for key, value in entry_fields("w", written).items()}
    assert StreamEntry.parse(fields) == StreamEntry("w", parts)


def test_a_repeated_entry_is_dropped_and_a_missing_one_is_told():
    async def take() -> list[ChatEvent]:
        heard: list[ChatEvent] = []
        subscription = Subscription("x", heard.extend)
        for one in (entry(0), entry(1, "a", "b"), entry(1, "a", "b"), entry(2, "c"), entry(4, "e")):
            subscription.take([one])
        return heard

    *deltas, last = asyncio.run(take())
    assert [event.text for event in deltas] == ["a", "b", "c"]
    assert (last.type, last.code) == ("failed", "stream_lost")


def test_parts_that_come_together_are_delivered_together():
    async def take() -> list[str]:
        calls: list[str] = []
        subscription = Subscription(
            "x", lambda events: calls.append("".join(e.text for e in events))
        )
        subscription.take([entry(0), entry(1, "a"), entry(1, "a"), entry(2, "b", "c")])
        return calls

    assert asyncio.run(take()) == ["abc"]


@given(st.text(), st.text())
def test_different_models_have_different_queues(one, other):
    names = queue_name("llm", one), queue_name("llm", other)
    assert (names[0] == names[1]) == (one == other)
    assert all(c.isalnum() or c in "-." for c in names[0])


def test_a_log_is_rotated_and_keeps_its_tail(tmp_path, monkeypatch):
    monkeypatch.setattr("workers.deployment.child._MAX_LOG_BYTES", 50)
    shown = []
    log = ChildLog(tmp_path / "a.log", shown.append)
    log.write(b"x" * 60 + b"\nhalf ")
    log.write(b"line ERROR here: no\n\xff\n")
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 60 + b"\nhalf "
    assert list(log.tail) == ["x" * 60, "half line ERROR here: no", "\N{REPLACEMENT CHARACTER}"]
    assert shown == ["half line ERROR here: no"]


@pytest.mark.parametrize(
    "module", ["client", "app", "deployment.supervisor", "housekeeping", "settings", "protocol"]
)
def test_what_the_gateway_imports_is_free_of_engines(module):
    code = (
        f"import sys, workers.{module}\n"
        "bad = {'torch', 'triton', 'transformers', 'diffusers', 'llm_engine', 'video_engine'}\n"
        "sys.exit(', '.join(bad & set(sys.modules)) or 0)"
    )
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
