"""Sequences over several memories: each in one, drawn by prefixes, pushed away by load."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.cache.divided import DividedCache
from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.report import cache_counts, describe_cache
from llm_engine.scheduler import Scheduler
from llm_engine.sequence import Sequence

PAGE, LONGEST = 4, 32
LAYOUT = CacheLayout.single(page_tokens=PAGE, bytes_per_token=1)


def divided(num_parts: int, num_pages: int) -> DividedCache:
    return DividedCache([KVCache(LAYOUT, [num_pages]) for _ in range(num_parts)])


def sequence(number: int, token_ids: list[int], answer: int = 4) -> Sequence:
    return Sequence(number, list(token_ids), len(token_ids), len(token_ids) + answer)


def serve(scheduler: Scheduler, seqs: list[Sequence]) -> None:
    """To the end, with the invariants looked at after every step."""
    for seq in seqs:
        scheduler.add(seq)
    cache = scheduler.cache
    places: dict[int, int] = {}
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert plan.chunks, "a step that computes nothing would repeat for ever"
        preempted = {seq.seq_id for seq in plan.preempted}
        for chunk in plan.chunks:
            seq, part = chunk.seq, cache.part_of(chunk.seq.seq_id)
            if seq.seq_id in places and chunk.start and seq.seq_id not in preempted:
                assert part == places[seq.seq_id], "a running sequence changed its part"
            places[seq.seq_id] = part
            held = [bool(each.table(seq.seq_id)) for each in cache.parts]
            assert held == [index == part for index in range(len(held))]
            if chunk.is_last:
                seq.token_ids.append(7)
        for chunk in plan.chunks:
            scheduler.commit(chunk)
            if len(chunk.seq.token_ids) == chunk.seq.max_total_tokens:
                scheduler.remove(chunk.seq)
                places.pop(chunk.seq.seq_id)
        cache.check_integrity()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, LONGEST - 4), min_size=1, max_size=9),
    num_parts=st.integers(2, 3),
    spare=st.integers(0, 6),
)
def test_every_sequence_ends_and_nothing_stays(
    lengths: list[int], num_parts: int, spare: int
) -> None:
    cache = divided(num_parts, LONGEST // PAGE + spare)
    scheduler = Scheduler(cache, max_num_seqs=8, prefill_chunk_tokens=9)
    serve(scheduler, [sequence(i, [i, *range(n - 1)]) for i, n in enumerate(lengths)])
    assert [pool.num_used for part in cache.parts for pool in part.pools] == [0] * num_parts


def test_equal_prompts_are_shared_out_evenly() -> None:
    cache = divided(2, 64)
    for number in range(8):
        assert cache.admit(sequence(number, [number, *range(15)])).is_admitted
    assert [cache.part_of(number) for number in range(8)].count(0) == 4


def test_a_prefix_draws_and_load_pushes_away() -> None:
    cache = divided(2, 64)
    prefix = list(range(16))
    serve(
        Scheduler(cache, max_num_seqs=2, prefill_chunk_tokens=64),
        [sequence(0, [9]), *[sequence(1, [*prefix, 50])]],
    )
    (home,) = [
        i for i, part in enumerate(cache.parts) if part.num_reusable(sequence(2, [*prefix, 1]))
    ]
    follower = sequence(2, [*prefix, 51])
    assert cache.admit(follower).num_tokens == len(prefix)
    assert cache.part_of(2) == home
    # Beside 17 tokens that run there, computing 16 again elsewhere is less.
    other = sequence(3, [*prefix, 52])
    assert cache.admit(other).num_tokens == 0
    assert cache.part_of(3) == 1 - home


def test_only_pages_of_the_same_part_make_room() -> None:
    """Two sequences of one part grow beyond it; those of the other go on, lower ranked or not."""
    cache = divided(2, LONGEST // PAGE)
    scheduler = Scheduler(cache, max_num_seqs=8, prefill_chunk_tokens=64)
    for number, length in enumerate((15, 15, 15, 3)):
        scheduler.add(sequence(number, [number, *range(length - 1)], answer=10))
    for _ in range(6):
        plan = scheduler.schedule()
        for chunk in plan.chunks:
            chunk.seq.token_ids.append(7)
            scheduler.commit(chunk)
        if plan.preempted:
            break
    (victim,) = plan.preempted
    assert victim.seq_id == 2  # of the part of 0, though 3 is ranked below it
    assert [cache.part_of(number) for number in (0, 1, 3)] == [0, 1, 1]
    running = {seq.seq_id for seq in scheduler.running}
    assert running == {0, 1, 3}


def test_counts_of_the_parts_add_up() -> None:
    cache = divided(2, 16)
    for number, length in enumerate((8, 1)):
        cache.admit(sequence(number, [number, *range(length)]))
    counts, found = cache_counts(cache), describe_cache(cache)
    assert counts["kv_pages_used"] == 4
    assert counts["kv_pages_total"] == 32
    assert counts["prefix_prompt_tokens_total"] == 11
    assert counts["prefix_misses_total"] == {"cold": 1, "below_minimum": 1}  # one in each part
    assert counts["min_reusable_prefix"] == PAGE
    assert found["groups"][0]["pages_used"] == 4
