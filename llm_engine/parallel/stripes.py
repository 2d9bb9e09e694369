"""Positions of sequences dealt out to ranks in turn, and what one rank's queries see of another's.

Rank r of n has the positions r, r + n, r + 2 n, …: their rows are computed there, and their keys
and values lie there, in its 1/n of every page. Each rank then sees as much as any other, whatever
the lengths and wherever a step begins: what a zig-zag split does for whole prompts only.
Source: Brandon et al. 2023, arXiv:2311.09431 (striped attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_engine.layers.paged_rows import AttentionSpan


@dataclass(frozen=True, slots=True)
class Reach:
    """Queries of one span on one rank, and the keys that they see on another.

    They are rows [first_row, first_row + num_rows) of the rank that asks; the last of them sees
    the first `num_keys` keys of the other rank's share of the sequence, each before it one fewer.
    """

    span: int
    first_row: int
    num_rows: int
    num_keys: int


def num_owned(end: int, rank: int, num_ranks: int) -> int:
    """How many of the positions 0..end a rank has."""
    return max(0, -(-(end - rank) // num_ranks))


def owned_positions(span: AttentionSpan, rank: int, num_ranks: int) -> range:
    """The positions of a span that a rank has."""
    first = span.start + (rank - span.start) % num_ranks
    return range(first, span.end, num_ranks)


def owned_rows(spans: Sequence[AttentionSpan], rows: range, num_ranks: int) -> list[list[int]]:
    """Of the rows `rows` of a step, those of each rank, in the step's order."""
    owned: list[list[int]] = [[] for _ in range(num_ranks)]
    row = 0
    for span in spans:
        for position in range(span.start, span.end):
            if row in rows:
                owned[position % num_ranks].append(row)
            row += 1
    return owned


def reaches(
    spans: Sequence[AttentionSpan], asking: int, keeping: int, num_ranks: int
) -> list[Reach]:
    """What each span's queries on rank `asking` see on rank `keeping`; none that sees nothing."""
    found: list[Reach] = []
    row = 0
    for index, span in enumerate(spans):
        num_rows = len(owned_positions(span, asking, num_ranks))
        # A share's i-th key has the position i n + keeping: the i-th query sees it or just not.
        num_keys = num_owned(span.end, asking, num_ranks) - (keeping > asking)
        num_seeing = min(num_rows, num_keys)
        if num_seeing > 0:
            first = row + num_rows - num_seeing
            found.append(Reach(index, first, num_seeing, num_keys))
        row += num_rows
    return found


def slots(span: AttentionSpan, rank: int, num_ranks: int, page_size: int) -> list[int]:
    """Where a rank's rows of a span lie in its share of the cache, page after page.

    `page_size` is the number of tokens of a page on all ranks together, a multiple of their number.
    """
    share = page_size // num_ranks
    return [
        span.pages[position // page_size] * share + position % page_size // num_ranks
        for position in owned_positions(span, rank, num_ranks)
    ]
