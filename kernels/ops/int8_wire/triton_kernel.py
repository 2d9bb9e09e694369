"""Blockwise int8 payloads: each value is read once and each byte written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.int8_wire.layout import BLOCK, BLOCK_BYTES, Layout
from kernels.ops.int8_wire.tiles import NUM_WARPS, TILE_BLOCKS
from kernels.triton_numerics import cast, round_to_integer

# A piece is runs of `run_length` neighbouring values, `run_stride` apart.

VALUES = tl.constexpr(BLOCK)


@triton.jit
def place_values(
    block, num_values, run_length, run_stride, piece_stride
):  # fmt: skip
    """Where the values of blocks of a piece lie in the tensor, and which of them exist."""
    value = block[:, None] * VALUES + tl.arange(0, VALUES)[None, :]
    piece = tl.program_id(1).to(tl.int64) * piece_stride
    run = (value // run_length).to(tl.int64)
    return piece + run * run_stride + value % run_length, value < num_values


@triton.jit
def encode_kernel(
    x_ptr, byte_ptr, scale_ptr, num_values, num_blocks, run_length, run_stride, piece_stride,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program TILE blocks of a piece."""
    block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    offset, inside = place_values(block, num_values, run_length, run_stride, piece_stride)
    x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.max(tl.abs(x), axis=1), tl.full([TILE], 127.0, tl.float32))
    bits = (scale.to(tl.int32, bitcast=True) + 255) & -256
    scale = bits.to(tl.float32, bitcast=True)
    scale = tl.where(scale > 0, scale, 1.0)
    whole = tl.broadcast_to(scale[:, None], (TILE, VALUES))
    scaled = tl.clamp(round_to_integer(tl.div_rn(x, whole)), -127.0, 127.0)
    is_block = block < num_blocks
    target = tl.program_id(1).to(tl.int64) * num_blocks + block
    bytes_at = byte_ptr + target[:, None] * (VALUES + 4) + tl.arange(0, VALUES)[None, :]
    tl.store(bytes_at, scaled.to(tl.int8), mask=is_block[:, None])
    tl.store(scale_ptr + target * ((VALUES + 4) // 4) + VALUES // 4, scale, mask=is_block)


@triton.jit
def decode_kernel(
    x_ptr, byte_ptr, scale_ptr, num_values, num_blocks, run_length, run_stride, piece_stride,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program TILE blocks of a piece."""
    block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    offset, inside = place_values(block, num_values, run_length, run_stride, piece_stride)
    source = tl.program_id(1).to(tl.int64) * num_blocks + block
    is_block = block < num_blocks
    scales = scale_ptr + source * ((VALUES + 4) // 4) + VALUES // 4
    scale = tl.load(scales, mask=is_block, other=0.0)
    bytes_at = byte_ptr + source[:, None] * (VALUES + 4) + tl.arange(0, VALUES)[None, :]
    value = tl.load(bytes_at, mask=is_block[:, None], other=0)
    x = value.to(tl.float32) * scale[:, None]
    tl.store(x_ptr + offset, cast(x, x_ptr.dtype.element_ty), mask=inside)


def int8_wire(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    *,
    wants_values: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launch once for neighbouring pieces of one size. See `kernels.ops.int8_wire`."""
    if payload_BY is None:
        assert x is not None
        shape = (layout.num_blocks, BLOCK_BYTES)
        payload_BY = torch.empty(shape, dtype=torch.uint8, device=x.device)
        _launch(encode_kernel, x.contiguous(), payload_BY, layout)
    values = None
    if wants_values:
        values = torch.empty(layout.shape, dtype=layout.dtype, device=payload_BY.device)
        _launch(decode_kernel, values, payload_BY.contiguous(), layout)
    return payload_BY, values


def _launch(
    kernel: triton.JITFunction, x: torch.Tensor, payload_BY: torch.Tensor, layout: Layout
) -> None:
    """One launch for each run of pieces of one size."""
    values_at, inner = x.view(-1), layout.num_inner
    row_stride = layout.shape[layout.axis] * inner
    for entry, first, count, size in layout.runs():
        num_values = layout.num_outer * size * inner
        if num_values == 0:
            continue
        num_blocks = triton.cdiv(num_values, BLOCK)
        part_BY = payload_BY[first : first + count * num_blocks]
        kernel[(triton.cdiv(num_blocks, TILE_BLOCKS), count)](
            values_at[entry * inner :],
            part_BY.view(torch.int8),
            part_BY.view(torch.float32),
            num_values,
            num_blocks,
            size * inner,
            row_stride,
            size * inner,
            TILE=TILE_BLOCKS,
            num_warps=NUM_WARPS,
        )
