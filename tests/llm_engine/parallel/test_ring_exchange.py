"""Attention over keys dealt out by position equals attention to all of them, however it travels."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.collectives.communicator import join
from kernels.collectives.errors import RankLost
from kernels.collectives.group import Group
from kernels.ops.full_attention.reference import attend
from kernels.ops.paged_decode.cpu import paged_decode
from kernels.ops.paged_prefill.cpu import paged_prefill
from kernels.ops.rotary_insert import Rotation
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.layers.rotary import turn_and_insert
from llm_engine.parallel.ring_exchange import PassedKeys, RingAttention, keys_are_fewer
from llm_engine.parallel.stripes import owned_positions, owned_rows, reaches, slots

HEADS, KV, DIM, PAGE = 6, 2, 8, 12
OPS: Any = SimpleNamespace(
    rotary_insert=turn_and_insert, paged_prefill=paged_prefill, paged_decode=paged_decode
)
# Pages out of order; two sequences share their first page.
PAGES = ((7, 2, 9, 0), (7, 4, 1, 3), (5, 8))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_every_query_reaches_exactly_the_keys_before_it(
    parts: list[tuple[int, int]], num_ranks: int
) -> None:
    spans = [AttentionSpan(start, count, ()) for start, count in parts]
    rows = owned_rows(spans, range(sum(count for _, count in parts)), num_ranks)
    assert sorted(itertools.chain(*rows)) == list(range(sum(count for _, count in parts)))
    for asking, keeping in itertools.product(range(num_ranks), repeat=2):
        asked = [(i, p) for i, s in enumerate(spans) for p in owned_positions(s, asking, num_ranks)]
        assert len(asked) == len(rows[asking])
        found = dict.fromkeys(range(len(asked)), 0)
        for reach in reaches(spans, asking, keeping, num_ranks):
            for row in range(reach.num_rows):
                assert asked[reach.first_row + row][0] == reach.span
                found[reach.first_row + row] = reach.num_keys - reach.num_rows + 1 + row
        for row, (_, position) in enumerate(asked):
            assert found[row] == len(range(keeping, position + 1, num_ranks))


@given(st.integers(2, 8), st.integers(0, 500), st.integers(1, 400))
def test_ranks_attend_to_equally_many_keys(num_ranks: int, start: int, count: int) -> None:
    """Of any chunk: one row's keys more or less, where a split in runs would differ by far more."""
    span = AttentionSpan(start, count, ())
    loads = [
        sum(position + 1 for position in owned_positions(span, rank, num_ranks))
        for rank in range(num_ranks)
    ]
    assert max(loads) - min(loads) <= span.end + count // num_ranks + 1


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_page_has_a_slot_for_each_position(num_ranks: int) -> None:
    span = AttentionSpan(3, 40, (3, 1, 0, 2, 4))
    for rank in range(num_ranks):
        found = slots(span, rank, num_ranks, 12)
        assert len(set(found)) == len(found) == len(owned_positions(span, rank, num_ranks))
        pages = [span.pages[p // 12] for p in owned_positions(span, rank, num_ranks)]
        assert [slot // (12 // num_ranks) for slot in found] == pages


def in_ranks(size: int, folder: Path, work: Callable[[Any], Any]) -> list[Any]:
    """What `work` returns for each rank's communicator; ranks are threads."""

    def rank(index: int) -> Any:
        torch.set_num_threads(1)
        group = Group(rank=index, size=size, rendezvous=f"file://{folder}/meeting", timeout_s=20)
        comm = join(group, transports=("shm",))
        try:
            with torch.inference_mode():
                return work(comm)
        finally:
            comm.close()

    with ThreadPoolExecutor(size) as threads:
        return [future.result() for future in [threads.submit(rank, i) for i in range(size)]]


def turn_nothing(positions_R: torch.Tensor) -> Rotation:
    shape = (len(positions_R), DIM // 2)
    return Rotation(cos=torch.ones(shape), sin=torch.zeros(shape)).for_step(
        len(positions_R), torch.float32
    )


def dense(x: dict[str, torch.Tensor], span: AttentionSpan) -> torch.Tensor:
    """Float64 attention of a span's queries to all positions before them."""
    q, k, v = (x[name].double() for name in "qkv")
    positions = torch.arange(span.end)
    is_seen = positions <= positions[span.start :, None]
    q = q[span.start : span.end]
    o, _ = attend(q, k[: span.end], v[: span.end], scale=DIM**-0.5, is_seen_SN=is_seen)
    return o


def spans_of(*parts: tuple[int, int]) -> list[AttentionSpan]:
    return [AttentionSpan(*part, pages) for part, pages in zip(parts, PAGES, strict=False)]


STEPS = {
    "prompts": spans_of((0, 23), (9, 14), (0, 1)),
    "decode": spans_of((30, 1), (12, 1), (0, 1)),
    "mixed": spans_of((11, 1), (6, 31), (3, 9)),
    "one": spans_of((0, 1)),
}


def random_values() -> list[dict[str, torch.Tensor]]:
    """Queries, keys and values of each sequence, by position."""
    generator = torch.Generator().manual_seed(3)
    values = [
        {
            name: torch.randn(48, heads, DIM, generator=generator)
            for name, heads in (("q", HEADS), ("k", KV), ("v", KV))
        }
        for _ in PAGES
    ]
    for name in "kv":  # of the page that two sequences share
        values[1][name][:PAGE] = values[0][name][:PAGE]
    return values


VALUES = random_values()


def rank_rows(spans: list[AttentionSpan], rank: int, size: int) -> list[Any]:
    """Queries, keys and values of a rank's rows of a step, as a fused product gives them."""
    rows = [
        torch.cat((x["q"], x["k"], x["v"]), 1)[owned_positions(span, rank, size)]
        for span, x in zip(spans, VALUES, strict=False)
    ]
    return list(torch.cat(rows).split_with_sizes((HEADS, KV, KV), 1))


def keep_past(layer: torch.Tensor, spans: list[AttentionSpan], rank: int, size: int) -> None:
    """Store what earlier steps would have stored on a rank."""
    for span, x in zip(spans, VALUES, strict=False):
        past = AttentionSpan(0, span.start, span.pages)
        kept = owned_positions(past, rank, size)
        kv = torch.stack((x["k"][kept], x["v"][kept]), 1)
        layer.flatten(0, 1)[slots(past, rank, size, PAGE)] = kv


def all_ways(comm: Any) -> dict[str, list[torch.Tensor]]:
    """A rank's output of each step: keys passed, queries, either by span, and keys in turn."""
    rank, size = comm.group.rank, comm.group.size
    # What no step has written yet must not matter, as long as it is finite.
    layer = torch.full((10, PAGE // size, 2, KV, DIM), 1e4)
    cache: Any = SimpleNamespace(layers=[layer], page_size=PAGE // size, head_dim=DIM)
    found: dict[str, list[torch.Tensor]] = {}
    for name, spans in STEPS.items():
        keep_past(layer, spans, rank, size)
        q, k, v = rank_rows(spans, rank, size)
        ways = ([True] * len(spans), [False] * len(spans), [i % 2 == 0 for i in range(len(spans))])
        found[name] = [
            RingAttention(comm, cache, spans, OPS, turn_nothing, passes_keys=way)(0, q, k, v)
            for way in ways
        ]
        in_turn = PassedKeys(comm, cache, spans, OPS, is_overlapped=False)
        found[name].append(in_turn(q.contiguous(), layer))
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_both_ways_give_the_same_bits_and_attention_to_all_keys(size: int, tmp_path: Path) -> None:
    for rank, answer in enumerate(in_ranks(size, tmp_path, all_ways)):
        for name, spans in STEPS.items():
            passed_keys, passed_queries, _, in_turn = answer[name]
            assert torch.equal(passed_keys, in_turn)
            if name != "decode":  # whose op pads sequences that it gathers together
                assert torch.equal(passed_keys, passed_queries)
            expected = torch.cat(
                [
                    dense(x, span)[[p - span.start for p in owned_positions(span, rank, size)]]
                    for x, span in zip(VALUES, spans, strict=False)
                ]
            )
            for output in answer[name]:
                torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=0)


class Loop:
    """A ring of one process: what goes out comes in; says when each pass has begun."""

    def __init__(self, size: int) -> None:
        self.group = Group(rank=0, size=size, rendezvous="file:///loop")
        self.begun = [threading.Event() for _ in range(size)]
        self.filled: list[int] = []

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> torch.Tensor:
        self.filled.append(into.data_ptr())
        self.begun[len(self.filled)].set()
        return into.copy_(out)


def test_a_block_is_attended_while_the_next_one_arrives_in_the_other_buffer() -> None:
    """Attending waits for the pass that has to run beside it: in turn, it would wait for ever."""
    size = 3
    ring = Loop(size)
    attended: list[int] = []

    def watched(q: torch.Tensor, cache: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        step = len(attended)
        attended.append(cache.data_ptr())
        if step + 1 < size:
            assert ring.begun[step + 1].wait(20)
            assert ring.filled[step] != attended[step]
        return paged_prefill(q, cache, *args, **kwargs)

    ops: Any = SimpleNamespace(rotary_insert=turn_and_insert, paged_prefill=watched)
    layer = torch.zeros(10, PAGE // size, 2, KV, DIM)
    cache: Any = SimpleNamespace(layers=[layer], page_size=PAGE // size, head_dim=DIM)
    spans = STEPS["prompts"]
    comm: Any = ring
    q, _, _ = rank_rows(spans, 0, size)
    _, ran = PassedKeys(comm, cache, spans, ops).attend(q, layer)
    assert len(set(attended)) == 2
    ends = {each.node.name: each.end_s for each in ran}
    assert len(ends) == 2 * size - 1
    assert all(ends[name] <= each.begin_s for each in ran for name in each.node.after)


def test_a_lost_rank_ends_the_ring_with_its_error() -> None:
    class Broken(Loop):
        def swap(self, *args: Any) -> torch.Tensor:
            raise RankLost("rank 1 is gone", (1,))

    comm: Any = Broken(3)
    layer = torch.zeros(10, PAGE // 3, 2, KV, DIM)
    cache: Any = SimpleNamespace(layers=[layer], page_size=PAGE // 3, head_dim=DIM)
    spans = STEPS["prompts"]
    q, _, _ = rank_rows(spans, 0, 3)
    with pytest.raises(RankLost, match="rank 1 is gone"):
        PassedKeys(comm, cache, spans, OPS)(q, layer)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stream-")]


def test_few_rows_over_a_long_past_ask_and_many_rows_are_brought_the_keys() -> None:
    layer = torch.zeros(10, PAGE // 2, 2, KV, DIM)
    cache: Any = SimpleNamespace(layers=[layer], page_size=PAGE // 2, head_dim=DIM)
    pages = tuple(range(10))
    # 120 keys of 2 x 2 x 8 values against 6 queries of 8 values, and as many answers and a sum.
    break_even = 120 * 32 / (6 * 17)
    assert keys_are_fewer(cache, AttentionSpan(120 - 38, 38, pages), HEADS, 2)
    assert 37 < break_even < 38
    assert not keys_are_fewer(cache, AttentionSpan(120 - 37, 37, pages), HEADS, 2)
