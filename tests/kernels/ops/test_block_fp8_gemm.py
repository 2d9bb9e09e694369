"""Block-scaled fp8 product: decoders against torch, and what a block's scale means."""

import os
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ImplUnavailable, ShapeError
from kernels.hardware.traits import load_traits
from kernels.ops.block_fp8_gemm import block_fp8_gemm
from kernels.ops.block_fp8_gemm.formats.reference import (
    dequantise_blocks,
    encode_e8m0,
    quantise_blocks,
    widen_scale,
)
from kernels.ops.block_fp8_gemm.formats.triton_kernel import decode_e4m3, decode_scale
from kernels.ops.block_fp8_gemm.reference import block_fp8_gemm as reference
from kernels.ops.block_fp8_gemm.reference import example
from kernels.ops.block_fp8_gemm.spec import SPEC
from kernels.ops.block_fp8_gemm.tiles import (
    FAMILIES_BY_UNIT,
    SKINNY_ROWS,
    matrix_unit,
    split_count,
    tile_for,
)
from kernels.ops.block_fp8_gemm.triton_kernel import block_fp8_gemm_decoded
from kernels.spec import Case

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off (make test)"
)


@triton.jit
def decode_kernel(byte_ptr, value_ptr, IS_SCALE: tl.constexpr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    byte = tl.load(byte_ptr + index)
    value = decode_scale(byte) if IS_SCALE else decode_e4m3(byte)
    tl.store(value_ptr + index, value)


@interpreted
def test_every_e4m3_byte_decodes_as_torch_does():
    byte, value = torch.arange(256, dtype=torch.uint8), torch.empty(256)
    decode_kernel[(1,)](byte, value, False, 256)
    expected = byte.view(torch.float8_e4m3fn).float()
    is_number = ~expected.isnan()
    assert is_number.sum() == 254
    assert torch.equal(value[is_number], expected[is_number])


@interpreted
def test_every_ue8m0_byte_decodes_as_torch_does():
    byte, value = torch.arange(256, dtype=torch.uint8), torch.empty(256)
    decode_kernel[(1,)](byte, value, True, 256)
    assert torch.equal(value[:255], widen_scale(byte, torch.float32)[:255])


decoded_cases = [
    case for case in SPEC.cases if not SPEC.find("triton_decoded").unmet(load_traits("sm_80"), case)
]


@interpreted
@pytest.mark.parametrize("case", decoded_cases, ids=str)
def test_the_decoded_form_is_as_exact_as_torch(case):
    args, options = example(case, torch.Generator().manual_seed(7))
    x, x_scale, weight, weight_scale = args
    wide = (x.double(), None) if x_scale is None else (x, x_scale.double())
    truth = reference(*wide, weight, weight_scale, **options)
    torch_lowp = reference(*args, **options).double()
    ours = block_fp8_gemm_decoded(*args, **options).double()
    assert ours.shape == truth.shape
    if truth.numel():
        bound = 2 * (torch_lowp - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (ours - truth).abs().max() <= bound


def one_block_apart(seed, block, power):
    """A product, and the same with one block's scale times 2^power; that block's columns."""
    generator = torch.Generator().manual_seed(seed)
    weight, scale = quantise_blocks(torch.randn(2 * block, 2 * block, generator=generator), block)
    x = torch.randn(3, 2 * block, generator=generator).bfloat16()
    x[:, :block] = 0  # only the second block along K counts
    changed = scale.clone()
    changed[1, 1] *= 2.0**power
    options = {"block": block, "out_dtype": torch.bfloat16}
    return (x, None, weight, scale), (x, None, weight, changed), options


def scales_with_its_block(run, seed, block, power):
    plain, changed, options = one_block_apart(seed, block, power)
    before, after = run(*plain, **options).float(), run(*changed, **options).float()
    assert torch.equal(after[:, :block], before[:, :block])
    assert torch.equal(after[:, block:], before[:, block:] * 2.0**power)


blocks_apart = given(
    seed=st.integers(0, 99), block=st.sampled_from([32, 128]), power=st.integers(-8, 8)
)


@settings(max_examples=25, deadline=None)
@blocks_apart
def test_scaling_a_block_scales_its_columns(seed, block, power):
    scales_with_its_block(reference, seed, block, power)


@interpreted
@settings(max_examples=4, deadline=None)
@blocks_apart
def test_scaling_a_block_scales_its_columns_in_the_kernel(seed, block, power):
    scales_with_its_block(block_fp8_gemm_decoded, seed, block, power)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 70),
    k=st.integers(1, 70),
    block=st.sampled_from([32, 128]),
    has_e8m0=st.booleans(),
    size=st.floats(1e-3, 1e3),
)
def test_quantising_a_block_is_off_by_half_a_step_at_most(n, k, block, has_e8m0, size):
    weight = size * torch.randn(n, k, generator=torch.Generator().manual_seed(n * 100 + k))
    values, scale = quantise_blocks(weight, block, has_e8m0=has_e8m0)
    back = dequantise_blocks(values, scale, block, torch.float64)
    unit = dequantise_blocks(torch.ones_like(weight).to(values.dtype), scale, block, torch.float64)
    exponent = (weight.double() / unit).abs().clamp(min=2.0**-6).log2().floor()
    half_step = 2.0 ** (exponent - 4) * unit
    assert ((back - weight).abs() <= half_step * (1 + 1e-6)).all()


@given(scale=st.floats(1e-30, 1e30))
def test_ue8m0_rounds_up_by_less_than_two(scale):
    given_scale = torch.tensor([scale], dtype=torch.float32)
    stored = widen_scale(encode_e8m0(given_scale), torch.float32)
    assert given_scale * (1 - 1e-6) <= stored <= 2 * given_scale


def test_the_tile_table_names_the_families_of_the_traits():
    for unit, families in FAMILIES_BY_UNIT.items():
        assert {matrix_unit(load_traits(family)) for family in families} == {unit}


@given(m=st.integers(1, 64), n=st.integers(1, 20000), k=st.integers(1, 20000))
def test_only_skinny_products_are_split_and_pieces_stay_long(m, n, k):
    tile = tile_for("wgmma", m, "e4m3", 128)
    splits = split_count(tile, m, n, k)
    assert splits in (1, 2, 4, 8)
    assert splits == 1 or (m <= SKINNY_ROWS and k // splits >= 512)


@pytest.mark.parametrize("unit", list(FAMILIES_BY_UNIT))
@pytest.mark.parametrize("block", [32, 128])
def test_a_step_never_crosses_a_scale_block(unit, block):
    for m, operand in ((1, "e4m3"), (16, "wide"), (4096, "bytes"), (4096, "e4m3")):
        assert block % tile_for(unit, m, operand, block).depth == 0


def test_the_public_function_takes_the_reference_on_a_cpu():
    case = Case(dtype="bf16", sizes={"M": 3, "N": 64, "K": 128}, options={"block": "128x128"})
    args, options = example(case, torch.Generator().manual_seed(1))
    assert torch.equal(block_fp8_gemm(*args), reference(*args, **options))
    with pytest.raises(ImplUnavailable, match="Triton compiles nothing"):
        block_fp8_gemm(*args, impl="triton")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 64}, "block is 64"),
        ({"weight_scale": torch.ones(2, 2)}, "weight_scale has shape"),
        ({"x_scale_MG": None}, "e4m3fn x comes with scales"),
        ({"weight_NK": torch.ones(64, 128)}, "weight is torch.float32"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, message):
    case = Case(dtype="bf16", sizes={"M": 3, "N": 64, "K": 128}, options={"block": "128x128"})
    args, _ = example(case, torch.Generator().manual_seed(1))
    names = ("x_MK", "x_scale_MG", "weight_NK", "weight_scale")
    call = partial(block_fp8_gemm, **(dict(zip(names, args, strict=True)) | change))
    with pytest.raises(ShapeError, match=message):
        call()
