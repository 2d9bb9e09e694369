"""Laws of attention to a window and chosen rows, with a sink."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.sparse_mla.reference import random_index, random_rows
from kernels.ops.sparse_mla.rows import gather, quantise
from kernels.ops.sparse_shared_kv import Selection, sparse_shared_kv

IMPLS = ["torch", *(["triton"] if os.environ.get("TRITON_INTERPRET") == "1" else [])]
shapes = st.tuples(st.integers(1, 2), st.integers(1, 18), st.sampled_from([16, 40]))
few = settings(max_examples=6, deadline=None)


def run(impl, *args, **options):
    """Through the kernel itself: a CPU is not a device that Triton compiles for."""
    if impl == "triton":
        from kernels.ops.sparse_shared_kv.triton_kernel import sparse_shared_kv as kernel

        return kernel(*args, **options, scale=0.3)
    return sparse_shared_kv(*args, **options, scale=0.3, impl=impl)


def arguments(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens, heads, width = shape
    q = torch.randn(tokens, heads, width, generator=generator)
    selections = [
        Selection(
            rows=random_rows(pool, width, 0, torch.float32, "bf16", generator),
            index_TK=random_index(tokens, count, pool, generator),
        )
        for pool, count in ((9, 7), (25, 19))
    ]
    return q, *selections, torch.randn(heads, generator=generator)


def close(mine, theirs):
    return all(torch.allclose(m, t, atol=1e-5) for m, t in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99))
def test_it_is_the_dense_softmax_over_what_is_seen(impl, shape, seed):
    q, window, chosen, sink = arguments(shape, seed)
    o, lse = run(impl, q, window, chosen, sink)
    rows = torch.cat([gather(s.rows, s.index_TK, torch.float32) for s in (window, chosen)], 1)
    is_seen = torch.cat([window.index_TK, chosen.index_TK], 1) >= 0
    scores = (q @ rows.transpose(1, 2) * 0.3).masked_fill(~is_seen[:, None], -torch.inf)
    logits = torch.cat([scores, sink[None, :, None].expand(len(q), -1, 1)], -1)
    assert torch.allclose(o, logits.softmax(-1)[..., :-1] @ rows, atol=1e-5)
    assert torch.allclose(lse, logits.logsumexp(-1), atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99))
def test_a_sink_of_minus_infinity_is_none(impl, shape, seed):
    q, window, chosen, sink = arguments(shape, seed)
    none = torch.full_like(sink, -torch.inf)
    assert close(run(impl, q, window, chosen, none), run(impl, q, window, chosen))


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99))
def test_parts_merge_and_one_of_them_has_the_sink(impl, shape, seed):
    q, window, chosen, sink = arguments(shape, seed)
    nothing = [Selection(rows=s.rows, index_TK=s.index_TK[:, :0]) for s in (window, chosen)]
    o, lse = run(impl, q, window, chosen, sink)
    parts = (run(impl, q, window, nothing[1], sink), run(impl, q, nothing[0], chosen))
    merged = sum((part - lse).exp()[..., None] * p for p, part in parts)
    assert torch.allclose(o, merged, atol=1e-5)
    assert torch.allclose(lse, torch.logaddexp(parts[0][1], parts[1][1]), atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99))
def test_order_and_splitting_change_nothing(impl, shape, seed):
    q, window, chosen, sink = arguments(shape, seed)
    shuffled = Selection(rows=chosen.rows, index_TK=chosen.index_TK.flip(1))
    whole = run(impl, q, window, chosen, sink)
    assert close(whole, run(impl, q, window, shuffled, sink))
    assert close(whole, run(impl, q, window, chosen, sink, phase="decode"))


@pytest.mark.parametrize("impl", IMPLS)
def test_nothing_but_a_sink_gives_zero(impl):
    q, window, chosen, sink = arguments((2, 4, 16), 0)
    nothing = [Selection(rows=s.rows, index_TK=-s.index_TK.abs() - 1) for s in (window, chosen)]
    nothing = [Selection(rows=s.rows, index_TK=s.index_TK.clamp(min=-1)) for s in nothing]
    o, lse = run(impl, q, *nothing, sink)
    assert (o == 0).all()
    assert torch.allclose(lse, sink.expand(2, -1), atol=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("is_e8m0", [False, True])
def test_quantised_rows_count_as_what_they_decode_to(impl, is_e8m0):
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 5, 72, generator=generator)
    pool = quantise(torch.randn(12, 72, generator=generator), num_tail=8, group=32, is_e8m0=is_e8m0)
    decoded = gather(pool, torch.arange(12)[None], torch.float32)[0]
    index = random_index(2, 9, 12, generator)
    results = []
    for rows in (pool, type(pool)(values_PN=decoded)):
        seen = Selection(rows=rows, index_TK=index)
        results.append(run(impl, q, seen, seen))
    assert close(*results)


def test_pools_of_two_formats_are_refused():
    q, window, chosen, sink = arguments((1, 2, 32), 0)
    other = quantise(torch.randn(9, 32), num_tail=0, group=16)
    with pytest.raises(ShapeError, match="rows of the window are 32 \\+ 0 columns"):
        sparse_shared_kv(
            q, Selection(rows=other, index_TK=window.index_TK), chosen, sink, scale=1.0
        )
