"""A step's rows cut into runs: parts of spans, and chunks of equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.model_config import ModelConfig


def cut_spans(spans: Sequence[AttentionSpan], rows: range) -> list[AttentionSpan]:
    """The parts of spans whose rows of the step lie in `rows`."""
    parts: list[AttentionSpan] = []
    first = 0
    for span in spans:
        begin = max(rows.start - first, 0)
        end = min(rows.stop - first, span.num_tokens)
        if begin < end:
            parts.append(AttentionSpan(span.start + begin, end - begin, span.pages))
        first += span.num_tokens
    return parts


def between_spans(spans: Sequence[AttentionSpan], num_chunks: int) -> list[range]:
    """Runs of rows, as even as can be without cutting a span; fewer where spans are few."""
    ends = list(accumulate(span.num_tokens for span in spans))
    num_rows = ends[-1]
    bounds = [0]
    for chunk in range(1, num_chunks):
        due = num_rows * chunk / num_chunks
        nearest = min(ends, key=lambda end: abs(end - due))
        if bounds[-1] < nearest < num_rows:
            bounds.append(nearest)
    return [range(start, end) for start, end in pairwise([*bounds, num_rows])]


def shrinking_chunks(
    spans: Sequence[AttentionSpan], num_chunks: int, growth: float, least_rows: int
) -> list[range]:
    """Runs of rows that cost the same, at most `num_chunks`, none below `least_rows`.

    A row at position p costs 1 + growth · p: later rows attend to more, so later chunks are
    smaller, and the stages of a pipeline never wait for a long one.
    """
    positions = [p for span in spans for p in range(span.start, span.end)]
    num_rows = len(positions)
    num_chunks = max(1, min(num_chunks, num_rows // least_rows))
    costs = list(accumulate(1 + growth * position for position in positions))
    bounds = [0]
    for chunk in range(1, num_chunks):
        due = costs[-1] * chunk / num_chunks
        row = next(row for row, cost in enumerate(costs) if cost >= due) + 1
        left = num_chunks - chunk
        row = min(max(row, bounds[-1] + least_rows), num_rows - left * least_rows)
        bounds.append(row)
    return [range(start, end) for start, end in pairwise([*bounds, num_rows])]


def attention_growth(config: ModelConfig) -> float:
    """How much more a row costs for each position before it, in costs of a row without any.

    Products of attention (4 H D a position) over those of the layer's active weights (2 each).
    """
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    inner = config.intermediate_size
    if config.moe is not None:
        inner = config.moe.num_experts_per_token * config.moe.intermediate_size
    active = config.hidden_size * (heads + 3 * inner)
    return 4 * config.num_heads * config.head_dim / (2 * active)
