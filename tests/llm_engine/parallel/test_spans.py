"""Cut spans cover the same tokens; a pipeline's chunks shrink and cost the same."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.spans import between_spans, cut_spans, shrinking_chunks

spans = st.lists(
    st.builds(AttentionSpan, st.integers(0, 500), st.integers(1, 90), st.just((0,))),
    min_size=1,
    max_size=5,
)


def tokens(parts: list[AttentionSpan]) -> list[int]:
    return [position for span in parts for position in range(span.start, span.end)]


@given(spans, st.lists(st.integers(0, 450), max_size=4))
def test_parts_cover_the_step(step: list[AttentionSpan], cuts: list[int]) -> None:
    num_rows = sum(span.num_tokens for span in step)
    bounds = [0, *sorted(min(cut, num_rows) for cut in cuts), num_rows]
    parts = [part for start, end in pairwise(bounds) for part in cut_spans(step, range(start, end))]
    assert tokens(parts) == tokens(step)


@given(spans, st.integers(1, 9))
def test_cuts_between_spans_leave_each_whole(step: list[AttentionSpan], num_chunks: int) -> None:
    chunks = between_spans(step, num_chunks)
    assert [row for chunk in chunks for row in chunk] == list(range(len(tokens(step))))
    assert 1 <= len(chunks) <= min(num_chunks, len(step))
    assert [part for chunk in chunks for part in cut_spans(step, chunk)] == step


def test_answers_are_cut_into_even_micro_batches() -> None:
    step = [AttentionSpan(9, 1, (0,))] * 64
    assert [len(chunk) for chunk in between_spans(step, 4)] == [16] * 4


@given(spans, st.integers(1, 9), st.floats(0, 1), st.integers(1, 40))
def test_chunks_cover_the_step_in_order(
    step: list[AttentionSpan], num_chunks: int, growth: float, least: int
) -> None:
    num_rows = sum(span.num_tokens for span in step)
    chunks = shrinking_chunks(step, num_chunks, growth, least)
    assert [row for chunk in chunks for row in chunk] == list(range(num_rows))
    assert len(chunks) == max(1, min(num_chunks, num_rows // least))
    assert len(chunks) == 1 or min(map(len, chunks)) >= least


def test_chunks_of_a_long_prompt_shrink_and_cost_the_same() -> None:
    growth = 0.01
    chunks = shrinking_chunks([AttentionSpan(0, 4096, (0,))], 8, growth, 32)
    sizes = [len(chunk) for chunk in chunks]
    assert len(sizes) == 8
    assert sizes == sorted(sizes, reverse=True)
    costs = [sum(1 + growth * row for row in chunk) for chunk in chunks]
    assert max(costs) < 1.02 * min(costs)
