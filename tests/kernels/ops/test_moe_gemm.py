"""Grouped experts: equal to the loop over experts for any routing; mxfp4 against its table."""

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ImplUnavailable, ShapeError
from kernels.hardware.traits import load_traits
from kernels.ops.block_fp8_gemm.formats.reference import (
    E2M1_VALUES,
    pack_mxfp4,
    unpack_mxfp4,
)
from kernels.ops.block_fp8_gemm.formats.triton_kernel import decode_mxfp4
from kernels.ops.block_fp8_gemm.tiles import FAMILIES_BY_UNIT
from kernels.ops.moe_gemm import moe_gemm
from kernels.ops.moe_gemm.cpu import moe_gemm as on_cpu
from kernels.ops.moe_gemm.experts import ExpertWeights
from kernels.ops.moe_gemm.reference import moe_gemm as reference
from kernels.ops.moe_gemm.reference import random_experts
from kernels.ops.moe_gemm.spec import SPEC
from kernels.ops.moe_gemm.tiles import TILES, tile_for
from kernels.ops.moe_gemm.triton_kernel import moe_gemm as in_triton
from kernels.spec import Case

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off (make test)"
)
E, D, I = 5, 32, 32  # noqa: E741 - the names of the sizes


def experts_of(kind="bf16", dtype="bf16", seed=0):
    case = Case(dtype=dtype, sizes={"E": E, "D": D, "I": I}, options={"weights": kind})
    return random_experts(case, torch.Generator().manual_seed(seed))


def arguments(ids, dtype, kind="bf16"):
    generator = torch.Generator().manual_seed(int(ids.sum()) + 17 * ids.numel())
    x = torch.randn(ids.shape[0], D, generator=generator).to(getattr(torch, dtype))
    weights = torch.rand(ids.shape, generator=generator)
    name = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    return x, ids, weights, experts_of(kind, name)


def loop_over_experts(x, ids, weights, experts, clamp=None):
    """What transformers does eagerly: one expert after the other, added where it belongs."""
    y = torch.zeros_like(x)
    for e in range(experts.num_experts):
        token, slot = torch.where(ids == e)
        gate, up = F.linear(x[token], experts.gate_up[e]).chunk(2, dim=-1)
        if clamp is not None:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        rows = F.linear(F.silu(gate) * up, experts.down[e]) * weights[token, slot, None]
        y.index_add_(0, token, rows.to(x.dtype))
    return y


routings = st.one_of(
    st.integers(1, 3).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(0, E - 1), min_size=k, max_size=k), min_size=1, max_size=12
        ).map(lambda rows: torch.tensor(rows, dtype=torch.int32))
    ),
    st.tuples(st.integers(0, E - 1), st.integers(1, 40)).map(
        lambda one: torch.full((one[1], 2), one[0], dtype=torch.int32)
    ),
)


def is_as_exact_as_the_loop(run, ids, dtype, clamp):
    x, ids, weights, experts = arguments(ids, dtype)
    truth = reference(x.double(), ids, weights, experts, clamp=clamp)
    loop = loop_over_experts(x, ids, weights, experts, clamp).double()
    ours = run(x, ids, weights, experts, clamp=clamp).double()
    # Of few values the loop's largest error is small by luck: a rounding of the result is owed.
    rounding = torch.finfo(x.dtype).eps / 2 * truth.abs().max()
    bound = 2 * (loop - truth).abs().max() + rounding + 1e-6 * truth.abs().max()
    assert (ours - truth).abs().max() <= bound


@settings(max_examples=60, deadline=None)
@given(
    ids=routings,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    clamp=st.sampled_from([None, 0.5]),
)
def test_grouped_on_a_cpu_equals_the_loop_for_any_routing(ids, dtype, clamp):
    is_as_exact_as_the_loop(on_cpu, ids, dtype, clamp)


@interpreted
@settings(max_examples=5, deadline=None)
@given(ids=routings, clamp=st.sampled_from([None, 0.5]))
def test_grouped_in_the_kernel_equals_the_loop_for_any_routing(ids, clamp):
    is_as_exact_as_the_loop(in_triton, ids, "bfloat16", clamp)


@pytest.mark.parametrize("run", [reference, on_cpu, pytest.param(in_triton, marks=interpreted)])
def test_experts_without_tokens_are_never_read(run):
    ids = torch.tensor([[0, 3], [3, 0], [3, 1]], dtype=torch.int32)
    x, ids, weights, experts = arguments(ids, "bfloat16")
    expected = run(x, ids, weights, experts)
    for unused in (2, 4):
        experts.gate_up[unused] = torch.nan
        experts.down[unused] = torch.nan
    assert torch.equal(run(x, ids, weights, experts), expected)


@pytest.mark.parametrize("run", [reference, on_cpu, pytest.param(in_triton, marks=interpreted)])
@pytest.mark.parametrize("kind", ["bf16", "mxfp4"])
def test_biases_and_gain_are_those_of_each_expert(run, kind):
    """As gpt-oss's experts: one after the other in float64, from the numbers of the weights."""
    if run is on_cpu and kind != "bf16":
        pytest.skip("on a CPU experts are numbers")
    ids = torch.tensor([[0, 3], [3, 0], [3, 1], [4, 2]], dtype=torch.int32)
    x, ids, weights, experts = arguments(ids, "bfloat16", kind)
    generator = torch.Generator().manual_seed(5)
    gate_up_bias, down_bias = (torch.randn(E, n, generator=generator) for n in (2 * I, D))
    experts = replace(experts, gate_up_bias=gate_up_bias, down_bias=down_bias.bfloat16())
    truth = torch.zeros(len(x), D, dtype=torch.float64)
    for token, slot in ((t, s) for t in range(len(x)) for s in range(2)):
        e = int(ids[token, slot])
        gate_up, down = experts.expert(e, torch.float64)
        gate, up = (gate_up @ x[token].double() + gate_up_bias[e]).chunk(2)
        gate, up = gate.clamp(max=0.9), up.clamp(-0.9, 0.9)
        hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        row = down @ hidden + experts.down_bias[e].double()
        truth[token] += weights[token, slot].double() * row
    ours = run(x, ids, weights, experts, clamp=0.9, gain=1.702, shift=1.0).double()
    assert (ours - truth).abs().max() <= 2.0**-7 * truth.abs().max()
    plain = run(x, ids, weights, experts, clamp=0.9).double()
    assert (plain - truth).abs().max() > 0.1 * truth.abs().max()


def test_biases_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match="down_bias has shape"):
        replace(experts_of(), down_bias=torch.zeros(E, 2 * D))


@pytest.mark.parametrize("run", [reference, on_cpu])
def test_a_wide_clamp_is_none(run):
    ids = torch.tensor([[0, 3], [1, 2]], dtype=torch.int32)
    args = arguments(ids, "float32")
    assert torch.equal(run(*args, clamp=1e9), run(*args))


@interpreted
def test_the_interpreted_kernel_gives_the_same_bits_twice():
    ids = torch.tensor([[4, 3], [1, 2], [0, 4]], dtype=torch.int32)
    args = arguments(ids, "bfloat16", "mxfp4")
    assert torch.equal(in_triton(*args), in_triton(*args))


def test_mxfp4_unpacks_to_its_table():
    nibbles = torch.arange(32) % 16
    packed = (nibbles[0::2] | nibbles[1::2] << 4).to(torch.uint8)[None]
    signed = torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)])
    for exponent in (-20, -1, 0, 7):
        scale = torch.tensor([[127 + exponent]], dtype=torch.uint8)
        expected = signed.repeat(2)[None] * 2.0**exponent
        assert torch.equal(unpack_mxfp4(packed, scale, torch.float32), expected)


@triton.jit
def unpack_kernel(packed_ptr, scale_ptr, y_ptr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    packed = tl.load(packed_ptr + row * (DEPTH // 2) + tl.arange(0, DEPTH // 2)[None, :])
    scale = tl.load(scale_ptr + row * (DEPTH // 32) + tl.arange(0, DEPTH // 32)[None, :])
    value = decode_mxfp4(packed, scale, ROWS, DEPTH)
    tl.store(y_ptr + row * DEPTH + tl.arange(0, DEPTH)[None, :], value)


@interpreted
def test_the_kernel_unpacks_every_byte_under_every_scale_exactly():
    packed = torch.arange(256, dtype=torch.uint8).repeat(4).view(16, 64)
    scale = torch.randint(60, 190, (16, 4), generator=torch.Generator().manual_seed(2))
    scale = scale.to(torch.uint8)
    y = torch.empty(16, 128)
    unpack_kernel[(1,)](packed, scale, y, 16, 128)
    assert torch.equal(y, unpack_mxfp4(packed, scale, torch.float32))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), size=st.floats(1e-4, 1e4))
def test_packing_what_was_unpacked_changes_nothing(seed, size):
    weight = size * torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
    packed, scale = pack_mxfp4(weight)
    exact = unpack_mxfp4(packed, scale, torch.float32)
    again = unpack_mxfp4(*pack_mxfp4(exact), torch.float32)
    assert torch.equal(again, exact)


def test_both_products_take_blocks_of_the_same_rows():
    for unit in FAMILIES_BY_UNIT:
        for phase in ("decode", "prefill"):
            rows = {tile.rows for name, tile in TILES[unit].items() if name.startswith(phase)}
            assert len(rows) == 1
            assert tile_for(unit, phase, "down", kind="fp8", block=32).depth == 32


def test_formats_that_fp16_cannot_hold_are_refused():
    case = Case(dtype="fp16", sizes=dict.fromkeys("TEkDI", 32), options={"weights": "mxfp4"})
    reasons = SPEC.find("triton").unmet(load_traits("sm_90"), case)
    assert "may overflow in fp16" in reasons[0]


def test_the_public_function_chooses_by_format():
    ids = torch.tensor([[0, 3], [1, 2]], dtype=torch.int32)
    plain, packed = arguments(ids, "bfloat16"), arguments(ids, "bfloat16", "mxfp4")
    assert torch.equal(moe_gemm(*plain), on_cpu(*plain))
    assert torch.equal(moe_gemm(*packed), reference(*packed))
    with pytest.raises(ImplUnavailable, match="weights=mxfp4 is not"):
        moe_gemm(*packed, impl="cpu")
    with pytest.raises(ShapeError, match="x has shape"):
        moe_gemm(torch.zeros(2, 7), *plain[1:])


@pytest.mark.parametrize(
    ("gate_up", "down", "message"),
    [
        ((2, 7, 4), (2, 4, 3), "7 rows"),
        ((2, 8, 4), (2, 4, 3), "down has shape"),
        ((2, 8, 4), (3, 4, 4), "down has shape"),
    ],
)
def test_weights_that_do_not_fit_together_are_refused(gate_up, down, message):
    with pytest.raises(ShapeError, match=message):
        ExpertWeights(gate_up=torch.zeros(gate_up), down=torch.zeros(down))


def test_quantised_weights_need_their_scales():
    experts = experts_of("fp8")
    with pytest.raises(ShapeError, match="gate_up_scale is missing"):
        ExpertWeights(gate_up=experts.gate_up, down=experts.down)
