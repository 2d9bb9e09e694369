"""Prefix reuse by example: hits in every group, pins, causes of misses, the host tier."""

import logging
from collections.abc import Sequence as Tokens
from typing import Any

import pytest

from llm_engine.cache.counters import MissCause
from llm_engine.cache.groups import CacheGroup, CacheLayout, GroupKind
from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.miss_watch import WARN_AFTER_MISSES
from llm_engine.sequence import Sequence

BLOCK = 4


class CountedPages:
    """Storage that only counts what is moved."""

    def __init__(self) -> None:
        self.out, self.back, self.copies, self.returned = 0, 0, 0, 0

    def copy_out(self, group: int, pages: Tokens[int]) -> list[Any]:
        self.out += len(pages)
        return list(pages)

    def copy_in(self, group: int, pages: Tokens[int], contents: Tokens[Any]) -> None:
        assert len(pages) == len(contents)
        self.back += len(pages)

    def copy(self, group: int, source: int, target: int) -> None:
        self.copies += 1

    def give_back(self, group: int, pages: Tokens[int]) -> None:
        self.returned += len(pages)


def single(num_pages: int, **settings: Any) -> KVCache:
    layout = CacheLayout.single(page_tokens=BLOCK, bytes_per_token=1)
    cache = KVCache(layout, [num_pages], **settings)
    cache.attach(CountedPages())
    return cache


_ids = iter(range(10**9))


def serve(cache: KVCache, ids: list[int], chunk: int = 8, **fields: Any) -> int:
    """Compute a prompt and end it. Returns the tokens that came from the cache."""
    seq = Sequence(next(_ids), list(ids), len(ids), len(ids) + 1, **fields)
    admission = cache.admit(seq)
    assert admission.is_admitted
    seq.num_computed = admission.num_tokens
    seq.has_run = True
    while seq.num_computed < len(ids):
        border = cache.layout.next_state_border(seq.num_computed) or len(ids)
        end = min(seq.num_computed + chunk, len(ids), border)
        assert cache.can_grow(seq.seq_id, end)
        cache.grow(seq.seq_id, end)
        seq.num_computed = end
        cache.commit(seq)
    cache.release(seq)
    cache.check_integrity()
    return admission.num_tokens


def test_a_resent_prompt_is_computed_from_its_last_block_on() -> None:
    cache = single(20)
    assert serve(cache, list(range(18))) == 0
    assert serve(cache, list(range(18))) == 16
    assert serve(cache, list(range(16))) == 15  # the last token is always computed
    assert serve(cache, [*range(10), 99, 98, 97]) == 10
    assert cache.counters.num_hits == 3
    assert cache.counters.num_partial_hits == 1
    assert cache.counters.num_hit_tokens == 41


def test_the_first_tokens_of_another_block_are_copied() -> None:
    cache = single(20)
    serve(cache, [*range(8), 1, 1, 1, 1])
    serve(cache, [*range(8), 1, 1, 2, 2])
    before = cache.storage.copies
    cached = {page for node in cache.tree.nodes.values() for page in node.pages[0] or ()}
    seq = Sequence(next(_ids), [*range(8), 1, 1, 2, 3, 3], 13, 14)
    assert cache.admit(seq).num_tokens == 11
    assert cache.storage.copies == before + 1
    assert set(cache.table(seq.seq_id)[:2]) <= cached
    assert not cached & set(cache.table(seq.seq_id)[2:])


def test_a_block_that_must_make_room_is_not_copied() -> None:
    cache = single(3)
    serve(cache, [*range(4), 1, 1, 1, 1])
    running = Sequence(next(_ids), [7], 1, 4)
    assert cache.admit(running).is_admitted
    assert serve(cache, [*range(4), 1, 1, 2]) == 4


def test_begun_blocks_are_reused_where_no_group_minds() -> None:
    groups = (
        CacheGroup(name="full", kind=GroupKind.FULL, page_tokens=BLOCK, page_bytes=1),
        CacheGroup(name="compressed", kind=GroupKind.COMPRESSED, page_tokens=BLOCK, page_bytes=1),
    )
    cache = KVCache(CacheLayout(groups), [20, 20])
    serve(cache, list(range(12)))
    assert serve(cache, [*range(10), 99, 98]) == 8


def test_every_kind_of_group_gives_a_hit_where_a_sequence_ended() -> None:
    kinds = {
        GroupKind.COMPRESSED: {},
        GroupKind.INDEX: {},
        GroupKind.WINDOW: {"window_tokens": 6, "checkpoint_tokens": 16},
        GroupKind.STATE: {"checkpoint_tokens": 8},
    }
    groups = tuple(
        CacheGroup(name=kind, kind=kind, page_tokens=BLOCK, page_bytes=1, **sizes)
        for kind, sizes in kinds.items()
    )
    cache = KVCache(CacheLayout(groups), [20, 20, 20, 8])
    cache.attach(CountedPages())
    assert cache.layout.min_reusable_prefix == 16
    assert serve(cache, list(range(40))) == 0
    # The window is still there at the end and at 16 and 32; the state at every 8.
    assert serve(cache, list(range(42))) == 40
    assert serve(cache, [*range(39), 7, 7]) == 32
    assert serve(cache, [*range(31), 7, 7]) == 16
    assert serve(cache, [*range(15), 7, 7]) == 0
    assert cache.counters.misses[MissCause.BELOW_MINIMUM] == 1


def test_a_window_keeps_checkpoints_only() -> None:
    groups = (
        CacheGroup(name="full", kind=GroupKind.FULL, page_tokens=BLOCK, page_bytes=1),
        CacheGroup(
            name="window",
            kind=GroupKind.WINDOW,
            page_tokens=BLOCK,
            page_bytes=1,
            window_tokens=BLOCK,
            checkpoint_tokens=32,
        ),
    )
    cache = KVCache(CacheLayout(groups), [64, 16])
    serve(cache, list(range(130)))
    # 4 checkpoints of 1 block; the sequence ended two tokens after the last of them.
    assert cache.pools[1].num_cached == 4
    assert cache.pools[0].num_cached == 32


def test_what_was_generated_is_reused_in_the_next_turn() -> None:
    cache = single(20)
    seq = Sequence(next(_ids), [1] * 6, 6, 30)
    cache.admit(seq)
    for token in range(10):
        cache.grow(seq.seq_id, len(seq.token_ids))
        seq.num_computed = len(seq.token_ids)
        seq.token_ids.append(token)
        cache.commit(seq)
    cache.release(seq)
    assert serve(cache, [*seq.token_ids, 5, 5]) == 12


def test_a_follower_waits_for_the_one_that_computes_its_prompt() -> None:
    cache = single(20)
    leader = Sequence(next(_ids), list(range(18)), 18, 20)
    assert cache.admit(leader).is_admitted
    follower = Sequence(next(_ids), list(range(18)), 18, 20)
    answer = cache.admit(follower)
    assert (answer.is_admitted, answer.leader, answer.leader_tokens) == (False, leader.seq_id, 16)
    leader.num_computed = 17
    cache.commit(leader)
    assert cache.admit(follower).num_tokens == 16
    assert cache.table(follower.seq_id)[:4] == cache.table(leader.seq_id)[:4]
    assert cache.table(follower.seq_id)[4] != cache.table(leader.seq_id)[4]


def test_a_failed_sequence_leaves_nothing_behind() -> None:
    cache = single(20)
    serve(cache, list(range(16)), has_failed=True)
    assert cache.pools[0].num_cached == 0
    assert serve(cache, list(range(16))) == 0


def test_shared_prompts_are_pinned_and_outlive_a_flood() -> None:
    cache = single(40)
    system = list(range(100, 116))
    for i in range(10):
        serve(cache, [*system, i])
    assert cache.pins.num_blocks == 4
    for i in range(100):
        serve(cache, [1000 + i] * 30)
    assert serve(cache, [*system, 5]) == 16
    assert cache.pins.num_blocks <= cache.pins.max_blocks == 10


def test_without_pins_the_flood_would_win() -> None:
    cache = single(40)
    cache.pins.max_blocks = 0
    system = list(range(100, 116))
    for i in range(10):
        serve(cache, [*system, i])
    for i in range(100):
        serve(cache, [1000 + i] * 30)
    assert serve(cache, [*system, 5]) == 0


def test_the_least_recently_used_end_leaves_first() -> None:
    cache = single(8)
    serve(cache, [1] * 9)
    serve(cache, [2] * 9)
    serve(cache, [1] * 9)
    serve(cache, [3] * 20)
    assert serve(cache, [1] * 9) == 8
    assert serve(cache, [2] * 9) == 0


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ({}, {"adapter_id": "a"}, MissCause.DIFFERENT_ADAPTER),
        ({}, {"cache_salt": "x"}, MissCause.DIFFERENT_SALT),
        ({}, {"wants_prompt_logits": True}, MissCause.PROMPT_LOGITS),
    ],
)
def test_why_an_equal_prompt_missed(first: Any, second: Any, cause: MissCause) -> None:
    cache = single(20)
    serve(cache, list(range(16)), **first)
    assert cache.counters.misses == {MissCause.COLD: 1}
    assert serve(cache, list(range(16)), **second) == 0
    assert cache.counters.misses[cause] == 1


def test_further_causes_of_misses() -> None:
    off = single(20, has_prefix_cache=False)
    serve(off, list(range(16)))
    assert serve(off, list(range(16))) == 0
    assert off.counters.misses == {MissCause.CACHE_OFF: 2}
    cache = single(6)
    serve(cache, [1, 2, 3])
    assert cache.counters.misses == {MissCause.BELOW_MINIMUM: 1}
    serve(cache, list(range(12)))
    serve(cache, [9] * 24)
    assert serve(cache, list(range(12))) == 0
    assert cache.counters.misses[MissCause.EVICTED] == 1


def test_a_row_of_misses_of_alike_prompts_is_told(caplog: pytest.LogCaptureFixture) -> None:
    cache = single(12)
    with caplog.at_level(logging.WARNING):
        for i in range(WARN_AFTER_MISSES + 1):
            serve(cache, [*range(40), i], cache_salt=str(i))
    assert cache.counters.num_warnings == 1
    assert "different_salt" in caplog.text or "evicted" in caplog.text


def test_the_host_tier_brings_evicted_blocks_back() -> None:
    cache = single(6, host_bytes=1000)
    serve(cache, list(range(20)))
    serve(cache, [9] * 24)
    assert cache.host.used_bytes > 0
    assert serve(cache, list(range(20))) == 16
    assert cache.host.in_bytes_total == 4 * BLOCK
    cache.clear()
    assert cache.host.used_bytes == 0
    assert cache.pools[0].num_free == 6


def test_the_host_tier_is_bounded() -> None:
    cache = single(6, host_bytes=5 * BLOCK)
    for i in range(20):
        serve(cache, [i] * 24)
        assert cache.host.used_bytes <= 5 * BLOCK
    assert cache.host.num_dropped_blocks > 0


def test_the_tree_does_not_grow_with_requests() -> None:
    cache = single(16)
    for i in range(2000):
        serve(cache, [i, i + 1] * 6)
    assert len(cache.tree.nodes) <= 16
    assert len(cache.tree._ghosts) <= 4 * 16
    assert all(len(heap) < 200 for heap in cache.tree._heaps)
    assert len(cache.tree.roots) <= 1


def test_shrinking_evicts_and_growing_serves_again() -> None:
    cache = single(16)
    serve(cache, list(range(40)))
    assert cache.resize(4) == 4
    assert cache.capacity_tokens == 16
    assert serve(cache, list(range(14))) == 12
    assert cache.resize(16) == 16
    assert serve(cache, list(range(40))) == 12
