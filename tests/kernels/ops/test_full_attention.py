"""Laws of full attention and of merging two halves."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.hardware.traits import load_traits
from kernels.offline import TARGETS
from kernels.ops.full_attention import full_attention, merge_lse
from kernels.ops.full_attention.spec import SPEC
from kernels.ops.full_attention.tiles import MATRIX_UNITS, TILES, choose_tile

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NAMES = ["cpu", "torch"] + ["triton"] * INTERPRETED
FEW = settings(max_examples=5, deadline=None)

sizes = st.tuples(st.integers(1, 40), st.integers(2, 70), st.integers(1, 5), st.integers(1, 48))
seeds = st.integers(0, 2**31)
each_implementation = pytest.mark.parametrize("name", NAMES)


def draw(shape, seed, dtype=torch.float32):
    queries, keys, heads, head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(queries, heads, head_dim, generator=generator)
    k, v = torch.randn(2, keys, heads, head_dim, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def attend(name, q, k, v):
    return SPEC.find(name).load()(q, k, v, scale=q.shape[-1] ** -0.5)


@each_implementation
@FEW
@given(shape=sizes, seed=seeds, data=st.data())
def test_merging_the_halves_of_the_keys_gives_the_whole(name, shape, seed, data):
    q, k, v = draw(shape, seed)
    cut = data.draw(st.integers(0, shape[1]))
    halves = attend(name, q, k[:cut], v[:cut]), attend(name, q, k[cut:], v[cut:])
    torch.testing.assert_close(merge_lse(*halves[0], *halves[1]), attend(name, q, k, v))


@each_implementation
@FEW
@given(shape=sizes, seed=seeds)
def test_the_order_of_the_keys_does_not_matter(name, shape, seed):
    q, k, v = draw(shape, seed)
    order = torch.randperm(shape[1], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(attend(name, q, k[order], v[order]), attend(name, q, k, v))


@each_implementation
@FEW
@given(shape=sizes, seed=seeds, data=st.data())
def test_heads_may_be_shared_out_unevenly(name, shape, seed, data):
    q, k, v = draw(shape, seed)
    cut = data.draw(st.integers(0, shape[2]))
    shares = [attend(name, *(x[:, part] for x in (q, k, v))) for part in halves_at(cut)]
    together = tuple(torch.cat(outputs, 1) for outputs in zip(*shares, strict=True))
    torch.testing.assert_close(together, attend(name, q, k, v))


def halves_at(cut):
    return slice(None, cut), slice(cut, None)


@each_implementation
def test_without_keys_the_output_is_zero_and_merges_to_nothing(name):
    q, k, v = draw((5, 4, 3, 16), 1)
    o, lse = attend(name, q, k[:0], v[:0])
    assert o.shape == q.shape
    assert not o.any()
    assert torch.isneginf(lse).all()
    rest = attend(name, q, k, v)
    torch.testing.assert_close(merge_lse(o, lse, *rest), rest)
    merged_o, merged_lse = merge_lse(o, lse, o, lse)
    assert not merged_o.any()
    assert torch.isneginf(merged_lse).all()


@pytest.mark.parametrize(("name", "bound"), [("cpu", 1e-4)] + [("triton", 2e-6)] * INTERPRETED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_lse_of_16_bit_inputs_is_that_of_exact_scores(name, bound, dtype):
    q, k, v = draw((33, 65, 2, 64), 3, dtype)
    exact = SPEC.find("torch").load()(q.double(), k.double(), v.double(), scale=0.125)[1]
    lse = attend(name, q, k, v)[1]
    assert lse.dtype == torch.float32
    assert (lse - exact).abs().max() <= bound * exact.abs().max()


@FEW
@given(shape=sizes, seed=seeds)
def test_merging_is_commutative_and_associative(shape, seed):
    parts = [attend("torch", *draw(shape, seed + i)) for i in range(3)]
    torch.testing.assert_close(
        merge_lse(*parts[0], *parts[1]), merge_lse(*parts[1], *parts[0]), rtol=0, atol=1e-6
    )
    left = merge_lse(*merge_lse(*parts[0], *parts[1]), *parts[2])
    torch.testing.assert_close(left, merge_lse(*parts[0], *merge_lse(*parts[1], *parts[2])))


def test_the_public_function_checks_and_dispatches():
    q, k, v = draw((6, 9, 2, 8), 5)
    torch.testing.assert_close(full_attention(q, k, v), attend("torch", q, k, v))
    with pytest.raises(ShapeError, match="k has shape"):
        full_attention(q, k[:, :1], v)
    with pytest.raises(ShapeError, match="float16"):
        full_attention(q, k.half(), v)
    with pytest.raises(ShapeError, match="positive"):
        full_attention(q, k, v, scale=0.0)


@pytest.mark.parametrize("family", TARGETS)
def test_a_family_takes_the_tile_of_its_matrix_unit(family):
    traits = load_traits(family)
    assert MATRIX_UNITS[family] == traits.mma_family
    assert choose_tile(TILES, traits, 80, 2) == TILES[traits.mma_family][128]
    with pytest.raises(KeyError, match="head dim of 257"):
        choose_tile(TILES, traits, 257, 2)
