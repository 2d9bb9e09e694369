"""Every algorithm against its reference on shards, with ranks as threads of one process."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives import chain, int8, island, pairwise, reduction, ring, tree
from kernels.collectives.limited_link import LimitedLink
from kernels.collectives.link import Message

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64]
CASES = given(
    size=st.integers(1, 6),
    count=st.integers(0, 300),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(["sum", "max"]),
    seed=st.integers(0, 1000),
)
FEW = settings(max_examples=25, deadline=None)


def make_shards(size, count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return list((torch.randn(size, count, generator=generator) * 10).to(dtype).unbind())


def run_all(in_threads, held, function):
    results = [shard.clone() for shard in held]
    in_threads(len(held), lambda link: function(link, results[link.rank]))
    return results


@CASES
@FEW
def test_exact_algorithms_equal_the_reference(in_threads, size, count, dtype, kind, seed):
    held = make_shards(size, count, dtype, seed)
    want = reduction.reference_all_reduce(held, kind)
    half = size // 2
    islands = [range(half), range(half, size)]
    forms = [
        lambda link, x: pairwise.all_reduce(link, x, kind),
        lambda link, x: chain.all_reduce(link, x, kind, chunk=64),
    ]
    if size % 2 == 0:
        forms.append(lambda link, x: island.all_reduce(link, x, kind, islands))
    for form in forms:
        for got, expected in zip(run_all(in_threads, held, form), want, strict=True):
            assert torch.equal(got, expected)


@CASES
@FEW
def test_the_ring_equals_its_reference(in_threads, size, count, dtype, kind, seed):
    held = make_shards(size, count, dtype, seed)
    got = run_all(in_threads, held, lambda link, x: ring.all_reduce(link, x, kind))
    for mine, expected in zip(got, ring.reference_all_reduce(held, kind), strict=True):
        assert torch.equal(mine, expected)


@given(
    rows=st.integers(1, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 40), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
)
@FEW
def test_all_to_all_of_any_sizes(in_threads, rows):
    size = len(rows)
    sent = [
        [torch.full((count,), 100 * s + r) for r, count in enumerate(rows[s])] for s in range(size)
    ]
    got = [[torch.empty(rows[s][r], dtype=torch.int64) for s in range(size)] for r in range(size)]
    in_threads(size, lambda link: pairwise.all_to_all(link, sent[link.rank], got[link.rank]))
    for mine, want in zip(got, pairwise.reference_all_to_all(sent), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, want, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_rounds_load_every_rank_once_in_each_direction(size):
    by_rank = [pairwise.rounds(rank, size) for rank in range(size)]
    for number in range(size - 1):
        pairs = [(rank, by_rank[rank][number][0]) for rank in range(size)]
        assert sorted(to for _, to in pairs) == list(range(size))
        assert all(by_rank[to][number][1] == rank for rank, to in pairs)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_broadcast_from_every_root(in_threads, size):
    for root in range(size):
        held = [torch.full((5,), rank) for rank in range(size)]
        in_threads(size, lambda link, x=held, root=root: tree.broadcast(link, x[link.rank], root))
        assert all(torch.equal(x, torch.full((5,), root)) for x in held)


def test_a_sum_does_not_depend_on_how_the_message_is_cut():
    held = make_shards(4, 1000, torch.bfloat16, 3)
    whole = reduction.reference_all_reduce(held)[0]
    parts = [
        reduction.reference_all_reduce([h[a:b] for h in held])[0] for a, b in ((0, 77), (77, 1000))
    ]
    assert torch.equal(torch.cat(parts), whole)
    cut = [ring.reference_all_reduce([h[a:b] for h in held])[0] for a, b in ((0, 77), (77, 1000))]
    assert not torch.equal(torch.cat(cut), ring.reference_all_reduce(held)[0])


@given(
    size=st.integers(1, 4),
    count=st.integers(0, 2000),
    seed=st.integers(0, 1000),
    overlaps=st.booleans(),
)
@FEW
def test_int8_in_chunks_equals_its_reference_on_every_rank(in_threads, size, count, seed, overlaps):
    held = make_shards(size, count, torch.bfloat16, seed)

    def reduce(link, x):
        movers = int8.Movers(
            rank=link.rank,
            size=link.size,
            all_to_all=lambda out, into: pairwise.all_to_all(link, out, into),
            all_gather=lambda parts: ring.all_gather(link, parts),
            overlaps=overlaps,
        )
        int8.all_reduce(x, "sum", movers, chunk=512)

    want = int8.reference_all_reduce(held, chunk=512)
    for got, expected in zip(run_all(in_threads, held, reduce), want, strict=True):
        assert torch.equal(got, expected)


def test_low_precision_pairs_round_once():
    a, b = (torch.randn(10_000, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    for dtype in (torch.bfloat16, torch.float16):
        x, y = a.to(dtype), b.to(dtype)
        out = torch.empty_like(x)
        reduction.combine_into(out, [x, y], "sum")
        assert torch.equal(out, (x.double() + y.double()).to(torch.float32).to(dtype))


def test_a_limited_link_takes_its_time(in_threads):
    took_s = []

    def move(link):
        if link.rank == 0:
            begin_s = time.monotonic()
            slow = LimitedLink(link, rate_bytes_s=1e6, latency_s=0.01)
            slow.exchange(Message(torch.zeros(10_000), 1), None)
            took_s.append(time.monotonic() - begin_s)
            return
        received = torch.ones(10_000)
        link.exchange(None, Message(received, 0))
        assert not received.any()

    in_threads(2, move)
    assert took_s[0] >= 0.05
