"""Laws of attention to selected latent rows."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.sparse_mla import Rows, sparse_mla
from kernels.ops.sparse_mla.reference import random_index, random_rows
from kernels.ops.sparse_mla.rows import check_rows, gather, quantise
from kernels.ops.sparse_mla.tiles import num_splits, slices_of

IMPLS = ["torch", *(["triton"] if os.environ.get("TRITON_INTERPRET") == "1" else [])]
shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 18), st.sampled_from([16, 40]), st.sampled_from([0, 8])
)
few = settings(max_examples=6, deadline=None)


def run(impl, *args, **options):
    """Through the kernel itself: a CPU is not a device that Triton compiles for."""
    if impl == "triton":
        from kernels.ops.sparse_mla.triton_kernel import sparse_mla as kernel

        return kernel(*args, **options)
    return sparse_mla(*args, **options, impl=impl)


def arguments(shape, seed, num_rows=21, num_pool=30):
    generator = torch.Generator().manual_seed(seed)
    tokens, heads, latent, tail = shape
    q = torch.randn(tokens, heads, latent + tail, generator=generator)
    rows = random_rows(num_pool, latent + tail, tail, torch.float32, "bf16", generator)
    return q, rows, random_index(tokens, num_rows, num_pool, generator)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99))
def test_all_rows_are_dense_attention(impl, shape, seed):
    q, rows, _ = arguments(shape, seed)
    index = torch.arange(30).expand(shape[0], -1).int()
    o, lse = run(impl, q, rows, index, scale=0.3)
    keys = gather(rows, index, torch.float32)
    scores = q @ keys.transpose(1, 2) * 0.3
    assert torch.allclose(o, scores.softmax(-1) @ keys[..., : shape[2]], atol=1e-5)
    assert torch.allclose(lse, scores.logsumexp(-1), atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(impl, shape, seed):
    q, rows, index = arguments(shape, seed)
    order = torch.randperm(index.shape[1], generator=torch.Generator().manual_seed(seed))
    for mine, theirs in zip(
        run(impl, q, rows, index, scale=0.3),
        run(impl, q, rows, index[:, order], scale=0.3),
        strict=True,
    ):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(shape=shapes, seed=st.integers(0, 99), cut=st.integers(0, 21))
def test_halves_merge_by_their_lse(impl, shape, seed, cut):
    q, rows, index = arguments(shape, seed)
    o, lse = run(impl, q, rows, index, scale=0.3)
    parts = [run(impl, q, rows, i, scale=0.3) for i in (index[:, :cut], index[:, cut:])]
    weights = [(part - lse).exp()[..., None] for _, part in parts]
    assert torch.allclose(
        o, sum(w * p for w, (p, _) in zip(weights, parts, strict=True)), atol=1e-5
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_splitting_changes_nothing(impl):
    q, rows, index = arguments((1, 4, 16, 8), 3, num_rows=90, num_pool=100)
    whole = run(impl, q, rows, index, scale=0.3)
    for mine, theirs in zip(
        whole, run(impl, q, rows, index, scale=0.3, phase="decode"), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("impl", IMPLS)
def test_a_token_without_rows_is_zero(impl, phase):
    q, rows, index = arguments((2, 3, 16, 8), 5, num_rows=60, num_pool=70)
    index[0] = -1
    o, lse = run(impl, q, rows, index, scale=0.3, phase=phase)
    assert (o[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    assert lse[1].isfinite().all()


@few
@given(seed=st.integers(0, 99), is_e8m0=st.booleans(), group=st.sampled_from([16, 32]))
def test_quantised_rows_are_near(seed, is_e8m0, group):
    x = torch.randn(9, 40 + 2 * group - 8, generator=torch.Generator().manual_seed(seed))
    tail = x.shape[1] - 2 * group
    rows = quantise(x, num_tail=tail, group=group, is_e8m0=is_e8m0)
    near = gather(rows, torch.arange(9)[None], torch.float32)[0]
    assert torch.equal(near[:, 2 * group :], x[:, 2 * group :])
    largest = x[:, : 2 * group].unflatten(1, (2, group)).abs().amax(-1, keepdim=True)
    error = (near - x)[:, : 2 * group].unflatten(1, (2, group)).abs()
    assert (error <= largest / 16).all()


def test_rows_that_do_not_fit_are_refused():
    values = torch.zeros(4, 32)
    with pytest.raises(ShapeError, match="32 wide; queries are 40 wide"):
        check_rows(Rows(values_PN=values), torch.float32, 40, name="rows")
    quantised = Rows(values_PN=values.to(torch.float8_e4m3fn), scales_PG=torch.ones(4, 4))
    with pytest.raises(ShapeError, match="power"):
        check_rows(quantised, torch.float32, 32, name="rows")
    with pytest.raises(ShapeError, match="must be one of prefill, decode"):
        sparse_mla(
            torch.zeros(1, 1, 32), Rows(values_PN=values), torch.zeros(1, 1).int(), scale=1.0,
            phase="both",
        )  # fmt: skip


def test_slices_cover_a_row():
    assert slices_of(512, 128, 64) == (8, 64)
    assert slices_of(123, 0, 64) == (2, 64)
    assert slices_of(48, 16, 64) == (4, 16)
    assert num_splits(1, 100, 100) == 32
    assert num_splits(1000, 100, 100) == 1
