"""Laws of decode over pages: the last row of a prefill, however the keys are split and stored."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.full_attention.tiles import Tile
from kernels.ops.paged_decode import paged_decode
from kernels.ops.paged_decode.reference import example
from kernels.ops.paged_decode.spec import SPEC
from kernels.ops.paged_prefill.spec import SPEC as PREFILL
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
        "B": draw(st.integers(1, 5)),
        "S": draw(st.integers(1, 150)),
        "H": kv_heads * draw(st.integers(1, 3)),
        "K": kv_heads,
        "D": draw(st.sampled_from([16, 20, 40])),
        "page": draw(st.sampled_from([1, 7, 16])),
    }
    case = Case(dtype="fp32", sizes=sizes, options={"window": window, "sink": sink})
    return example(case, torch.Generator().manual_seed(draw(seeds)))


def decode(name, args, options):
    return SPEC.find(name).load()(*args, **options)


@each_implementation
@FEW
@given(drawn=examples(window="yes", sink="yes"))
def test_it_is_the_last_row_of_a_prefill(name, drawn):
    (q, cache, lengths, table), options = drawn
    for b, length in enumerate(lengths.tolist()):
        queries = torch.randn(length, *q.shape[1:])
        queries[-1] = q[b]
        bounds = torch.tensor([0, length], dtype=torch.int32)
        args = (queries, cache, bounds, lengths[b : b + 1], table[b : b + 1])
        rows = PREFILL.find("torch").load()(*args, **options)
        alone = decode(name, (q[b : b + 1], cache, lengths[b : b + 1], table[b : b + 1]), options)
        torch.testing.assert_close(alone, tuple(x[-1:] for x in rows))


@each_implementation
@FEW
@given(drawn=examples(), beyond=st.integers(0, 5))
def test_a_window_as_long_as_the_context_is_none(name, drawn, beyond):
    args, options = drawn
    windowed = decode(name, args, options | {"window": int(args[2].max()) + beyond})
    torch.testing.assert_close(windowed, decode(name, args, options))


@each_implementation
@FEW
@given(drawn=examples(window="yes"))
def test_a_sink_of_minus_infinity_is_none(name, drawn):
    args, options = drawn
    sink_H = torch.full(args[0].shape[1:2], -torch.inf)
    torch.testing.assert_close(
        decode(name, args, options | {"sink_H": sink_H}), decode(name, args, options)
    )


@each_implementation
@FEW
@given(drawn=examples(sink="yes"), seed=seeds)
def test_pages_may_lie_anywhere_and_sequences_in_any_order(name, drawn, seed):
    (q, cache, lengths, table), options = drawn
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(cache), generator=generator)
    moved = torch.empty_like(cache)
    moved[order] = cache
    rows = torch.randperm(len(q), generator=generator)
    turned = (q[rows], moved, lengths[rows], order.int()[table.long()][rows])
    expected = decode(name, (q, cache, lengths, table), options)
    torch.testing.assert_close(decode(name, turned, options), tuple(x[rows] for x in expected))


@each_implementation
@FEW
@given(drawn=examples(window="yes"))
def test_entries_past_the_end_of_a_sequence_are_never_read(name, drawn):
    (q, cache, lengths, table), options = drawn
    filled = torch.full((len(table), table.shape[1] + 3), 2**30, dtype=torch.int32)
    for b, length in enumerate(lengths.tolist()):
        used = -(-length // cache.shape[1])
        filled[b, :used] = table[b, :used]
    torch.testing.assert_close(
        decode(name, (q, cache, lengths, filled), options),
        decode(name, (q, cache, lengths, table), options),
    )


def test_a_batch_larger_than_a_cacheful_is_gathered_in_parts():
    case = Case(dtype="fp32", sizes={"B": 5, "S": 900, "H": 4, "K": 2, "D": 64, "page": 16})
    args, options = example(case, torch.Generator().manual_seed(4))
    torch.testing.assert_close(decode("cpu", args, options), decode("torch", args, options))


@pytest.mark.skipif(not INTERPRETED, reason="importing the launcher needs Triton's interpreter")
@pytest.mark.parametrize(
    ("capacity", "groups", "splits"), [(4096, 8, 32), (4096, 256, 3), (64, 8, 1), (4096, 9999, 1)]
)
def test_splits_fill_the_device_and_no_more(capacity, groups, splits):
    from kernels.ops.paged_decode.triton_kernel import num_splits_for

    tile = Tile(rows=16, keys=64, num_warps=4, num_stages=1)
    assert num_splits_for(capacity, tile, groups, num_processors=132) == splits


def test_the_public_function_checks_and_dispatches():
    case = Case(dtype="fp32", sizes={"B": 3, "S": 30, "H": 4, "K": 2, "D": 16, "page": 4})
    args, options = example(case, torch.Generator().manual_seed(1))
    torch.testing.assert_close(paged_decode(*args), decode("torch", args, options))
    q, cache, lengths, table = args
    with pytest.raises(ShapeError, match="lengths has shape"):
        paged_decode(q[:2], cache, lengths, table)
    with pytest.raises(ShapeError, match="table has shape"):
        paged_decode(q, cache, lengths, table[:2])
