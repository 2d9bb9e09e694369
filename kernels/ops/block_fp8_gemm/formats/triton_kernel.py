"""Decode e4m3, e2m1 and ue8m0 with integer operations: the same on every family."""

from __future__ import annotations

import triton
import triton.language as tl

TWO_POW_120 = tl.constexpr(2.0**120)
TWO_POW_126 = tl.constexpr(2.0**126)


@triton.jit
def decode_e4m3(byte):
    """e4m3fn bytes (uint8) as float32, exactly; a NaN byte reads as ±480.

    Exponent and mantissa are put where float32 has its own; the product by 2^(127 - 7) mends the
    bias and turns e4m3's subnormals, which are float32 subnormals by then, into normal numbers.
    """
    wide = byte.to(tl.int32)
    bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * TWO_POW_120


@triton.jit
def decode_e2m1(nibble):
    """e2m1 in the low four bits of an int32 as float32, exactly: bias 1, so 2^(127 - 1)."""
    bits = ((nibble & 0x8) << 28) | ((nibble & 0x7) << 22)
    return bits.to(tl.float32, bitcast=True) * TWO_POW_126


@triton.jit
def decode_scale(scale):
    """ue8m0 bytes (uint8) as 2^(b - 127) in float32; other scales as float32."""
    if scale.dtype == tl.uint8:
        bits = scale.to(tl.int32) << 23
        bits = tl.where(bits == 0, 0x00400000, bits)
        return bits.to(tl.float32, bitcast=True)
    else:
        return scale.to(tl.float32)


@triton.jit
def decode_mxfp4(packed, scale, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Packed (ROWS, DEPTH/2) and ue8m0 (ROWS, DEPTH/32) → float32 (ROWS, DEPTH), exactly.

    The even column lies in the low nibble; a scale covers 16 bytes.
    """
    wide = packed.to(tl.int32)
    spread = tl.broadcast_to(decode_scale(scale)[:, :, None], (ROWS, DEPTH // 32, 16))
    factor = tl.reshape(spread, (ROWS, DEPTH // 2))
    low = decode_e2m1(wide & 0xF) * factor
    high = decode_e2m1(wide >> 4) * factor
    return tl.interleave(low, high)


@triton.jit
def load_weight(
    weight_ptr,
    scale_ptr,
    column,
    k0,
    depth,
    dtype: tl.constexpr,
    FORMAT: tl.constexpr,  # of FORMATS
    IS_ALIGNED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A (BLOCK_K, BLOCK_N) tile of weights in `dtype`; e4m3 still without its scale.

    IS_ALIGNED says that rows start on 16 bytes and that BLOCK_K divides their depth.
    """
    if FORMAT == 2:
        byte = k0 // 2 + tl.arange(0, BLOCK_K // 2)
        group = k0 // 32 + tl.arange(0, BLOCK_K // 32)
        at = weight_ptr + column.to(tl.int64)[:, None] * (depth // 2) + byte[None, :]
        scale_at = scale_ptr + column.to(tl.int64)[:, None] * (depth // 32) + group[None, :]
        if IS_ALIGNED:
            packed = tl.load(tl.multiple_of(at, (16, 16)))
            scale = tl.load(tl.multiple_of(scale_at, (BLOCK_K // 32, BLOCK_K // 32)))
        else:
            packed = tl.load(at, mask=byte[None, :] < depth // 2, other=0)
            scale = tl.load(scale_at, mask=group[None, :] < depth // 32, other=0)
        return tl.trans(decode_mxfp4(packed, scale, BLOCK_N, BLOCK_K).to(dtype))
    else:
        k = k0 + tl.arange(0, BLOCK_K)
        at = weight_ptr + column.to(tl.int64)[None, :] * depth + k[:, None]
        if IS_ALIGNED:
            stored = tl.load(tl.multiple_of(at, (16, 16)))
        else:
            stored = tl.load(at, mask=k[:, None] < depth, other=0)
        if FORMAT == 1:
            stored = decode_e4m3(stored)
        return stored.to(dtype)
