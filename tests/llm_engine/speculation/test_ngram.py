"""Prompt look-up against a search of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.speculation.ngram import NgramDrafter

_TEXT = st.lists(st.integers(0, 3), max_size=60)


def _search(ids: list[int], max_tokens: int) -> tuple[int, ...]:
    """What follows the latest earlier occurrence of the longest suffix of 2 to 5 tokens."""
    for size in (5, 4, 3, 2):
        for start in range(len(ids) - size - 1, -1, -1):
            if size < len(ids) and ids[start : start + size] == ids[-size:]:
                longer = list(ids)
                for i in range(max_tokens):
                    longer.append(longer[start + size + i])
                return tuple(longer[len(ids) :])
    return ()


@settings(deadline=None)
@given(_TEXT, st.lists(st.integers(1, 9), max_size=20))
def test_it_finds_what_a_search_finds_as_the_text_grows(ids: list[int], steps: list[int]) -> None:
    drafter, known = NgramDrafter(), 0
    for step in [*steps, len(ids)]:
        known = min(known + step, len(ids))
        assert drafter.propose(ids[:known], 6) == _search(ids[:known], 6)


def test_the_index_grows_by_a_fixed_number_of_entries_a_token() -> None:
    drafter = NgramDrafter()
    ids = [(i * i) % 1009 for i in range(3000)]
    drafter.propose(ids, 4)
    assert len(drafter._follows) <= 4 * len(ids)


def test_acceptance_follows_what_was_right_for_each_length_of_match() -> None:
    drafter = NgramDrafter()
    long, short = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5], [1, 2, 8, 9, 1, 2]
    for _ in range(60):
        assert drafter.propose(long, 3) == (6, 7, 1)
        drafter.observe(3, 3)
    assert drafter.acceptance > 0.95
    other = NgramDrafter()
    other._acceptance = drafter._acceptance
    assert other.propose(short, 1) == (8,)
    assert other.acceptance == 0.5
    for _ in range(60):
        other.observe(0, 1)
    assert other.acceptance < 0.05
