"""The page pool keeps its books."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.kv_cache import PagePool


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60))
def test_pages_have_one_owner_or_none(orders: list[tuple[int, int]]) -> None:
    pool = PagePool(num_pages=12, page_size=4)
    for seq_id, num_tokens in orders:
        if num_tokens == 0:
            pool.release(seq_id)
        elif pool.can_grow(seq_id, num_tokens):
            pool.grow(seq_id, num_tokens)
            assert len(pool.table(seq_id)) * 4 >= num_tokens
        pool.check_integrity()
        assert pool.num_free + pool.num_used == 12


def test_check_integrity_names_the_page_owned_twice() -> None:
    pool = PagePool(num_pages=4, page_size=1)
    pool.grow(0, 2)
    pool._tables[1] = [0]
    with pytest.raises(AssertionError, match=r"owned twice \[0\]"):
        pool.check_integrity()


def test_check_integrity_names_the_lost_page() -> None:
    pool = PagePool(num_pages=4, page_size=1)
    pool.grow(0, 2)
    del pool._tables[0]
    with pytest.raises(AssertionError, match=r"lost \[0, 1\]"):
        pool.check_integrity()
