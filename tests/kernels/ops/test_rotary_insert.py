"""Laws of the rotation and of the insertion."""

import dataclasses
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.rotary_insert import HeadNorm, Insertion, Rotation, rotary_insert
from kernels.ops.rotary_insert.cpu import rotary_insert as on_cpu
from kernels.ops.rotary_insert.reference import rotary_insert as reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
IMPLEMENTATIONS = ["cpu", "torch"]
seeds = st.integers(0, 2**20)
styles = st.sampled_from(["half", "interleaved"])


def rotation(width, style="half", num_positions=32, **options):
    frequencies = 100.0 ** -(torch.arange(width // 2) / (width // 2))
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return Rotation(cos=angles.cos(), sin=angles.sin(), style=style, **options)


def heads(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=seeds, style=styles, turns_last=st.booleans(), width=st.sampled_from([2, 6, 16]))
@settings(max_examples=20, deadline=None)
def test_turning_back_is_the_inverse_and_lengths_stay(impl, seed, style, turns_last, width):
    x = heads(seed, 5, 3, 16)
    turn = rotation(width, style, positions=torch.arange(5) * 3, turns_last=turns_last)
    turned, _, _ = rotary_insert(x, None, rotation=turn, impl=impl)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    back = dataclasses.replace(turn, is_inverse=True)
    restored, _, _ = rotary_insert(turned, None, rotation=back, impl=impl)
    torch.testing.assert_close(restored, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=seeds, style=styles, shift=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_products_depend_on_the_distance_alone(impl, seed, style, shift):
    q, k = heads(seed, 4, 2, 8), heads(seed + 1, 4, 2, 8)

    def product(offset):
        turn = rotation(8, style, positions=torch.arange(4) + offset)
        turned_q, turned_k, _ = rotary_insert(q, k, rotation=turn, impl=impl)
        return torch.einsum("thd,shd->hts", turned_q, turned_k)

    torch.testing.assert_close(product(shift), product(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_styles_are_a_permutation_of_each_other(impl, seed):
    x = heads(seed, 3, 2, 12)
    order = torch.arange(12).reshape(2, 6).T.flatten()  # halves to neighbours
    by_halves, _, _ = rotary_insert(x, None, rotation=rotation(12), impl=impl)
    by_pairs, _, _ = rotary_insert(
        x[..., order].contiguous(), None, rotation=rotation(12, "interleaved"), impl=impl
    )
    torch.testing.assert_close(by_pairs, by_halves[..., order])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=seeds, style=styles)
@settings(max_examples=20, deadline=None)
def test_a_partial_rotation_turns_its_slice_alone(impl, seed, style):
    x = heads(seed, 3, 2, 16)
    last, _, _ = rotary_insert(x, None, rotation=rotation(6, style, turns_last=True), impl=impl)
    piece, _, _ = rotary_insert(
        x[..., 10:].contiguous(), None, rotation=rotation(6, style), impl=impl
    )
    assert torch.equal(last[..., :10], x[..., :10])
    torch.testing.assert_close(last[..., 10:], piece)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=seeds, style=styles, is_inverse=st.booleans())
@settings(max_examples=10, deadline=None)
def test_a_steps_tables_turn_as_the_whole_tables_do(impl, seed, style, is_inverse):
    x, positions = heads(seed, 5, 3, 16), torch.tensor([3, 1, 4, 1, 5])
    turn = rotation(16, style, positions=positions, is_inverse=is_inverse)
    plain, _, _ = rotary_insert(x, None, rotation=turn, impl=impl)
    gathered, _, _ = rotary_insert(x, None, rotation=turn.for_step(5), impl=impl)
    assert torch.equal(gathered, plain)


def implementations():
    found = [("cpu", on_cpu), ("torch", reference)]
    if INTERPRETED:
        from kernels.ops.rotary_insert.triton_kernel import rotary_insert as launch

        found.append(("triton", launch))
    return found


@pytest.mark.parametrize(("name", "run"), implementations())
@pytest.mark.parametrize("has_value", [True, False])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_rows_land_in_their_slots_and_nowhere_else(name, run, has_value, cache_dtype):
    fused = heads(3, 5, 8, 16)
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:] if has_value else None
    turn = rotation(16, positions=torch.tensor([0, 4, 5, 9, 31]))
    cache = torch.full((3, 4, 2 if has_value else 1, 2, 16), 7.0).to(cache_dtype)
    insertion = Insertion(slots=torch.tensor([11, -1, 0, 5, 6]), scale=0.02)
    turned_q, turned_k, returned = run(q, k, v, cache, rotation=turn, insertion=insertion)
    plain_q, plain_k, _ = reference(q, k, rotation=turn)
    assert turned_k is None
    assert returned is cache
    torch.testing.assert_close(turned_q, plain_q)
    is_quantised = cache_dtype == torch.float8_e4m3fn
    rows = cache.float().flatten(0, 1) * (insertion.scale if is_quantised else 1.0)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4}
    kept = [0, 2, 3, 4]
    wanted = torch.stack((plain_k, v) if has_value else (plain_k,), dim=1)[kept]
    torch.testing.assert_close(
        rows[[11, 0, 5, 6]], wanted, rtol=tolerance[cache_dtype] * 1.001, atol=1e-4
    )
    others = cache.float().flatten(0, 1)[[1, 2, 3, 4, 7, 8, 9, 10]]
    assert (others == 7).all()


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_tables_in_the_activations_dtype_cost_no_more_than_twice_the_error(style):
    q = heads(1, 40, 9, 64).bfloat16()
    turn = rotation(64, style, num_positions=40)
    turn = dataclasses.replace(turn, cos=turn.cos.bfloat16(), sin=turn.sin.bfloat16())
    exact = reference(q.double(), None, rotation=turn)[0]
    plain = reference(q, None, rotation=turn)[0]
    ours = on_cpu(q, None, rotation=turn.for_step(40))[0]
    assert (ours - exact).abs().max() <= 2 * (plain - exact).abs().max()


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_normalised_heads_have_unit_mean_square(seed):
    q, k = heads(seed, 2, 3, 16), heads(seed + 1, 2, 1, 16)
    ones = torch.ones(16)
    norm = HeadNorm(q_weight=ones, k_weight=None, eps=0.0)
    turned_q, turned_k, _ = rotary_insert(q, k, rotation=rotation(16), norm=norm)
    torch.testing.assert_close(turned_q.square().mean(-1), torch.ones(2, 3))
    torch.testing.assert_close(turned_k.norm(dim=-1), k.norm(dim=-1))


def test_callers_learn_what_is_wrong():
    q = torch.zeros(2, 2, 8)
    with pytest.raises(ShapeError, match="style is 'twist'"):
        rotary_insert(q, None, rotation=rotation(8, "twist"))
    with pytest.raises(ShapeError, match="16 dimensions turn"):
        rotary_insert(q, None, rotation=rotation(16))
    with pytest.raises(ShapeError, match="one of them is missing"):
        rotary_insert(q, q, rotation=rotation(8), insertion=Insertion(slots=torch.zeros(2)))
