"""Chunks that hold several tokens, and rows of workers that were read a moment ago."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from service.generation.joining import joined
from service.generation.stream import Placed
from service.recent_workers import RECENT_S, RecentWorkers
from workers.protocol import ChatDelta, ChatDone, WorkerFacts

deltas = st.builds(
    ChatDelta,
    index=st.integers(0, 1),
    text=st.text(max_size=3),
    num_tokens=st.integers(0, 3),
    finish_reason=st.sampled_from([None, None, None, "stop"]),
    reasoning=st.sampled_from(["", "", "", "hm"]),
)
batches = st.lists(st.tuples(st.integers(0, 1), deltas), max_size=12)


def _said(batch: list[Placed]) -> dict[tuple[int, int], tuple[str, str, int]]:
    """Text, reasoning and number of tokens of each choice."""
    said: dict[tuple[int, int], tuple[str, str, int]] = {}
    for position, event in batch:
        assert isinstance(event, ChatDelta)
        text, reasoning, num = said.get((position, event.index), ("", "", 0))
        said[position, event.index] = (
            text + event.text, reasoning + event.reasoning, num + event.num_tokens,
        )  # fmt: skip
    return said


def _order(batch: list[Placed]) -> list[tuple[int, int, bool]]:
    """Whose turn it is, with repeats of plain text counted once."""
    keys = [
        (place, event.index, not event.reasoning and event.finish_reason is None)
        for place, event in batch
        if isinstance(event, ChatDelta)
    ]
    return [key for key, run in groupby(keys) for _ in ([0] if key[2] else list(run))]


@given(batches)
def test_joining_keeps_what_is_said_and_in_which_order(batch: list[Placed]) -> None:
    short = joined(batch)
    assert _said(short) == _said(batch)
    assert _order(short) == _order(batch)
    assert len(short) == len(_order(batch))


def test_the_end_of_an_answer_stays_last() -> None:
    end = ChatDone(prompt_tokens=1, completion_tokens=2)
    batch: list[Placed] = [
        (0, ChatDelta(index=0, text="a", num_tokens=1)),
        (0, ChatDelta(index=0, text="b", num_tokens=1)),
        (0, end),
    ]
    assert joined(batch) == [(0, ChatDelta(index=0, text="ab", num_tokens=2)), (0, end)]


def test_rows_are_recent_for_a_moment_only() -> None:
    now_s = 100.0
    recent = RecentWorkers(clock=lambda: now_s)
    row = WorkerFacts.model_construct(id="llm-1")
    assert not recent.rows()
    recent.keep([row])
    now_s += RECENT_S * 0.9
    assert recent.rows() == [row]
    now_s += RECENT_S * 0.2
    assert not recent.rows()
