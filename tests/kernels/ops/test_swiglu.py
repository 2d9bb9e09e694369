"""Laws of SwiGLU."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ImplUnavailable, ShapeError
from kernels.ops.swiglu import swiglu
from kernels.ops.swiglu.reference import swiglu as reference
from kernels.quantise import dequantise_rows, group_size

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
shapes = st.tuples(st.integers(1, 6), st.integers(1, 300))
seeds = st.integers(0, 2**20)


def fused(shape, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape[0], 2 * shape[1], generator=generator).to(dtype)


@given(shape=shapes, seed=seeds)
@settings(max_examples=25, deadline=None)
def test_a_clamp_beyond_every_value_is_no_clamp(shape, seed):
    x = fused(shape, seed)
    torch.testing.assert_close(swiglu(x, clamp=1e6)[0], swiglu(x)[0])


@given(shape=shapes, seed=seeds, clamp=st.floats(0.1, 2.0))
@settings(max_examples=25, deadline=None)
def test_a_clamp_acts_as_clamping_the_input(shape, seed, clamp):
    x = fused(shape, seed)
    gate, up = x.chunk(2, dim=-1)
    clamped = torch.cat((gate.clamp(max=clamp), up.clamp(-clamp, clamp)), dim=-1)
    torch.testing.assert_close(swiglu(x, clamp=clamp)[0], swiglu(clamped)[0])


@given(shape=shapes, seed=seeds)
@settings(max_examples=25, deadline=None)
def test_it_is_linear_in_up_and_nothing_passes_a_closed_gate(shape, seed):
    x = fused(shape, seed)
    gate, up = x.chunk(2, dim=-1)
    doubled = swiglu(torch.cat((gate, 2 * up), dim=-1))[0]
    torch.testing.assert_close(doubled, 2 * swiglu(x)[0])
    assert not swiglu(torch.cat((torch.zeros_like(gate), up), dim=-1))[0].any()


@pytest.mark.parametrize("quant", ["fp8", "int8"])
@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_quantised_values_lie_within_half_a_step(quant, implementation):
    x = fused((3, 300), 5)
    if implementation == "torch":
        values, scales = reference(x, quant=quant)
    else:
        if not INTERPRETED:
            pytest.skip("Triton's interpreter is off")
        from kernels.ops.swiglu.triton_kernel import swiglu as launch

        values, scales = launch(x, quant=quant)
    assert scales is not None
    exact = swiglu(x)[0]
    error = (dequantise_rows(values, scales, quant) - exact).abs()
    wide = scales.repeat_interleave(group_size(quant, 300), dim=-1)[:, :300]
    # int8 steps by the scale; e4m3 has 3 mantissa bits, and steps by 2^-9 of the scale at 0.
    half_step = 0.5 * wide if quant == "int8" else (exact.abs() / 16).maximum(wide * 2.0**-10)
    assert (error <= half_step * (1 + 1e-5)).all()


def test_callers_learn_what_is_wrong():
    with pytest.raises(ShapeError, match="even number"):
        swiglu(torch.zeros(2, 5))
    with pytest.raises(ImplUnavailable, match="quant"):
        swiglu(torch.zeros(2, 4), quant="fp8", impl="cpu")
