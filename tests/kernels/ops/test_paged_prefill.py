"""Laws of prefill over pages: what the layout of the cache must not change, and what a past is."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.paged_prefill import paged_prefill
from kernels.ops.paged_prefill.cpu import LONG_CHUNK
from kernels.ops.paged_prefill.reference import example
from kernels.ops.paged_prefill.spec import SPEC
from kernels.spec import Case

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NAMES = ["cpu", "torch"] + ["triton"] * INTERPRETED
FEW = settings(max_examples=5, deadline=None)

seeds = st.integers(0, 2**31)
each_implementation = pytest.mark.parametrize("name", NAMES)


@st.composite
def examples(draw, window="none", sink="none"):
    kv_heads = draw(st.integers(1, 2))
    sizes = {
        "T": draw(st.integers(1, 40)),
        "S": draw(st.integers(12, 90)),
        "H": kv_heads * draw(st.integers(1, 3)),
        "K": kv_heads,
        "D": draw(st.sampled_from([16, 20, 40])),
        "page": draw(st.sampled_from([1, 7, 16])),
    }
    case = Case(dtype="fp32", sizes=sizes, options={"window": window, "sink": sink})
    return example(case, torch.Generator().manual_seed(draw(seeds)))


def prefill(name, args, options):
    return SPEC.find(name).load()(*args, **options)


@each_implementation
@FEW
@given(drawn=examples(), beyond=st.integers(0, 5))
def test_a_window_as_long_as_the_context_is_none(name, drawn, beyond):
    args, options = drawn
    windowed = prefill(name, args, options | {"window": int(args[3].max()) + beyond})
    torch.testing.assert_close(windowed, prefill(name, args, options))


@each_implementation
@FEW
@given(drawn=examples(window="yes"))
def test_a_sink_of_minus_infinity_is_none(name, drawn):
    args, options = drawn
    sink_H = torch.full(args[0].shape[1:2], -torch.inf)
    torch.testing.assert_close(
        prefill(name, args, options | {"sink_H": sink_H}), prefill(name, args, options)
    )


@each_implementation
@FEW
@given(drawn=examples(sink="yes"), page=st.integers(1, 20))
def test_the_size_of_a_page_does_not_matter(name, drawn, page):
    (q, cache, bounds, lengths, table), options = drawn
    rows = cache[table.long()].flatten(1, 2)
    num_pages = -(-rows.shape[1] // page)
    padded = torch.zeros(rows.shape[0], num_pages * page, *rows.shape[2:])
    padded[:, : rows.shape[1]] = rows
    paged = padded.unflatten(1, (num_pages, page)).flatten(0, 1)
    numbers = torch.arange(len(paged), dtype=torch.int32).view(-1, num_pages)
    torch.testing.assert_close(
        prefill(name, (q, paged, bounds, lengths, numbers), options),
        prefill(name, (q, cache, bounds, lengths, table), options),
    )


@each_implementation
@FEW
@given(drawn=examples(window="yes", sink="yes"), seed=seeds)
def test_pages_may_lie_anywhere(name, drawn, seed):
    (q, cache, bounds, lengths, table), options = drawn
    order = torch.randperm(len(cache), generator=torch.Generator().manual_seed(seed))
    moved = torch.empty_like(cache)
    moved[order] = cache
    torch.testing.assert_close(
        prefill(name, (q, moved, bounds, lengths, order.int()[table.long()]), options),
        prefill(name, (q, cache, bounds, lengths, table), options),
    )


@each_implementation
@FEW
@given(drawn=examples(window="yes"))
def test_the_order_of_the_sequences_does_not_matter(name, drawn):
    (q, cache, bounds, lengths, table), options = drawn
    parts = q.tensor_split(bounds[1:-1].long())
    backwards = torch.tensor([0, *(len(p) for p in reversed(parts))]).cumsum(0).int()
    turned = (torch.cat(parts[::-1]), cache, backwards, lengths.flip(0), table.flip(0))
    straight = prefill(name, (q, cache, bounds, lengths, table), options)
    for ours, theirs in zip(prefill(name, turned, options), straight, strict=True):
        again = torch.cat(ours.tensor_split(backwards[1:-1].long())[::-1])
        torch.testing.assert_close(again, theirs)


@each_implementation
@FEW
@given(drawn=examples(window="yes", sink="yes"), data=st.data())
def test_chunks_give_the_rows_of_the_whole(name, drawn, data):
    (q, cache, bounds, lengths, table), options = drawn
    num_new = int(bounds[1])
    cut = data.draw(st.integers(0, num_new))
    whole = prefill(name, (q, cache, bounds, lengths, table), options)
    for rows, length in (
        (slice(0, cut), lengths[:1] - (num_new - cut)),
        (slice(cut, num_new), lengths[:1]),
    ):
        ends = torch.tensor([0, rows.stop - rows.start], dtype=torch.int32)
        chunk = prefill(name, (q[rows], cache, ends, length, table[:1]), options)
        torch.testing.assert_close(chunk, tuple(x[rows] for x in whole))


def test_a_long_past_without_a_mask_is_the_same():
    case = Case(dtype="fp32", sizes={"T": 6, "S": 70, "H": 6, "K": 3, "D": 16, "page": 8})
    args, options = example(case, torch.Generator().manual_seed(2))
    torch.testing.assert_close(prefill("cpu", args, options), prefill("torch", args, options))


def test_the_public_function_checks_and_dispatches():
    case = Case(dtype="fp32", sizes={"T": 9, "S": 20, "H": 4, "K": 2, "D": 16, "page": 4})
    args, options = example(case, torch.Generator().manual_seed(1))
    torch.testing.assert_close(paged_prefill(*args), prefill("torch", args, options))
    q, cache, bounds, lengths, table = args
    with pytest.raises(ShapeError, match="no multiple"):
        paged_prefill(q[:, :3], cache, bounds, lengths, table)
    with pytest.raises(ShapeError, match="cu_seqlens_q has shape"):
        paged_prefill(q, cache, bounds[1:], lengths, table)
    with pytest.raises(ShapeError, match="window is 0"):
        paged_prefill(*args, window=0)
    with pytest.raises(ShapeError, match="cache has strides"):
        paged_prefill(q, cache.mT.contiguous().mT, bounds, lengths, table)


@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_a_long_chunk_sees_its_past_alike_masked_or_merged(beside):
    """Around the past from which on it is seen whole: as long as the chunk."""
    generator = torch.Generator().manual_seed(beside + 1)
    num_new, page = LONG_CHUNK, 16
    num_keys = 2 * num_new + beside
    q_THD = torch.randn(num_new, 2, 16, generator=generator)
    cache = torch.randn(-(-num_keys // page), page, 2, 1, 16, generator=generator)
    table = torch.arange(len(cache), dtype=torch.int32)[None]
    bounds = torch.tensor([0, num_new], dtype=torch.int32)
    lengths = torch.tensor([num_keys], dtype=torch.int32)
    args, options = (q_THD, cache, bounds, lengths, table), {"scale": 0.25}
    torch.testing.assert_close(prefill("cpu", args, options), prefill("torch", args, options))
