"""What stages compute with is what the cache holds, whatever was done to its pages between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.prompt_pages import PromptPages

SIZE, NUM_PAGES, NUM_SLOTS = 3, 8, 4
VERSIONS = count(1)
tables = st.lists(st.integers(0, NUM_PAGES - 1), min_size=1, max_size=2, unique=True)


class StagesBesideACache(RuleBasedStateMachine):
    """Each row of the cache has the version of what was written last; so have the slots' rows."""

    @initialize()
    def begin(self) -> None:
        self.pages = PromptPages(NUM_SLOTS, SIZE)
        self.home = [0] * (NUM_PAGES * SIZE)
        self.staged = [-1] * (NUM_SLOTS * SIZE)

    def span(self, data: st.DataObject, table: Sequence[int]) -> AttentionSpan:
        start = data.draw(st.integers(0, len(table) * SIZE - 1))
        length = data.draw(st.integers(1, len(table) * SIZE - start))
        return AttentionSpan(start, length, tuple(table))

    def rows(self, span: AttentionSpan, positions: range) -> list[int]:
        return [span.pages[p // SIZE] * SIZE + p % SIZE for p in positions]

    @rule(data=st.data(), table=tables, other=tables)
    def prompts(self, data: st.DataObject, table: list[int], other: list[int]) -> None:
        """Two sequences of pages of their own in one step."""
        other = [page for page in other if page not in table]
        spans = [self.span(data, each) for each in (table, other) if each]
        placed = self.pages.place(spans)
        for home, staged in zip(placed.missing.home, placed.missing.staged, strict=True):
            self.staged[staged] = self.home[home]
        for span, there in zip(spans, placed.spans, strict=True):
            # A stage reads every token before the span, and writes those of the span.
            before = range(span.start)
            read = [self.staged[row] for row in self.rows(there, before)]
            assert read == [self.home[row] for row in self.rows(span, before)]
            for row in self.rows(there, range(span.start, span.end)):
                self.staged[row] = next(VERSIONS)
        for home, staged in zip(placed.written.home, placed.written.staged, strict=True):
            self.home[home] = self.staged[staged]
        for span, there in zip(spans, placed.spans, strict=True):
            both = (self.rows(each, range(span.end)) for each in (span, there))
            assert [self.home[row] for row in next(both)] == [
                self.staged[row] for row in next(both)
            ]

    @rule(data=st.data(), table=tables)
    def answer(self, data: st.DataObject, table: list[int]) -> None:
        span = self.span(data, table)
        for row in self.rows(span, range(span.start, span.end)):
            self.home[row] = next(VERSIONS)
        self.pages.overwrite([span])

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def load(self, page: int) -> None:
        self.home[page * SIZE : (page + 1) * SIZE] = [next(VERSIONS) for _ in range(SIZE)]
        self.pages.forget([page])

    @rule()
    def renew(self) -> None:
        """Nothing is left by which ranks that have just begun could place pages differently."""
        span = [AttentionSpan(0, SIZE * NUM_SLOTS, tuple(range(NUM_SLOTS)))]
        self.pages.clear()
        assert self.pages.place(span) == PromptPages(NUM_SLOTS, SIZE).place(span)
        self.pages.clear()
        self.staged = [-1] * (NUM_SLOTS * SIZE)


TestStagesBesideACache = StagesBesideACache.TestCase
TestStagesBesideACache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_prompt_in_chunks_is_never_fetched_again() -> None:
    pages = PromptPages(4, 4)
    table = (9, 3, 7)
    first = pages.place([AttentionSpan(0, 6, table[:2])])
    assert first.missing.home == ()
    assert first.written.home == (36, 37, 38, 39, 12, 13)
    second = pages.place([AttentionSpan(6, 5, table)])
    assert second.missing.home == ()
    assert second.written.home == (14, 15, 28, 29, 30)


def test_more_pages_than_slots_are_refused() -> None:
    with pytest.raises(AssertionError, match="3 pages for 2 slots"):
        PromptPages(2, 4).place([AttentionSpan(0, 9, (0, 1, 2))])
