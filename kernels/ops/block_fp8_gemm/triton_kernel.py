"""Block-scaled fp8 product: e4m3 on the matrix unit, or decoded to 16 bits in the kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.block_fp8_gemm.formats.reference import is_e8m0
from kernels.ops.block_fp8_gemm.formats.triton_kernel import decode_e4m3, decode_scale
from kernels.ops.block_fp8_gemm.tiles import Tile, matrix_unit, split_count, tile_for
from kernels.quantise import FP8_GROUP
from kernels.runtime import device_traits
from kernels.triton_numerics import cast, dot

# M rows, N columns of the result, K depth, G groups of 128 along K, S pieces of K.

ROWS_TOGETHER = 8  # row tiles that share a column tile while it is in L2
SUM_BLOCK = 1024


@triton.jit
def block_fp8_gemm_kernel(
    x_ptr,
    x_scale_ptr,
    weight_ptr,
    weight_scale_ptr,
    y_ptr,
    num_rows,
    num_columns,
    depth,
    x_stride,
    BLOCK: tl.constexpr,  # side of a weight scale's square
    GROUP: tl.constexpr,  # values of x that share a scale
    HAS_X_SCALE: tl.constexpr,
    IS_NATIVE: tl.constexpr,  # the matrix unit multiplies e4m3; else x and weight are bytes
    IS_ALIGNED: tl.constexpr,  # K and the row stride are multiples of 16, K of BLOCK_K · SPLITS
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One program a tile of y and a piece of K. Sums stay apart until their scale is applied."""
    num_m, num_n = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_columns, BLOCK_N)
    program, piece = tl.program_id(0), tl.program_id(1)
    together = GROUP_M * num_n
    first_m = program // together * GROUP_M
    size_m = tl.minimum(num_m - first_m, GROUP_M)
    tile_m = first_m + program % together % size_m
    tile_n = program % together // size_m

    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row, column = m % num_rows, n % num_columns
    step_k = tl.arange(0, BLOCK_K)
    steps = tl.cdiv(tl.cdiv(depth, BLOCK_K), SPLITS)
    start = piece * steps * BLOCK_K
    x_row = x_ptr + row.to(tl.int64)[:, None] * x_stride
    weight_row = weight_ptr + column.to(tl.int64)[None, :] * depth
    num_blocks, num_groups = tl.cdiv(depth, BLOCK), tl.cdiv(depth, GROUP)
    x_scale_row = x_scale_ptr + row * num_groups
    if BLOCK_N <= BLOCK:
        scale_row = weight_scale_ptr + tile_n * BLOCK_N // BLOCK * num_blocks
    else:
        scale_row = weight_scale_ptr + column // BLOCK * num_blocks

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, steps):
        k0 = start + step * BLOCK_K
        k = k0 + step_k
        if IS_ALIGNED:
            x = tl.load(tl.multiple_of(x_row + k[None, :], (16, 16)))
            weight = tl.load(tl.multiple_of(weight_row + k[:, None], (16, 16)))
        else:
            x = tl.load(x_row + k[None, :], mask=k[None, :] < depth, other=0.0)
            weight = tl.load(weight_row + k[:, None], mask=k[:, None] < depth, other=0.0)
        if not IS_NATIVE:
            if HAS_X_SCALE:
                x = decode_e4m3(x).to(tl.bfloat16)
            weight = decode_e4m3(weight).to(x.dtype)
        partial = dot(x, weight, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))
        inside = k0 < depth
        scale = decode_scale(tl.load(scale_row + k0 // BLOCK, mask=inside, other=0))
        if BLOCK_N <= BLOCK:
            if HAS_X_SCALE:
                x_scale = tl.load(x_scale_row + k0 // GROUP, mask=inside, other=0.0)
                acc += partial * (x_scale * scale)[:, None]
            else:
                acc += partial * scale
        else:
            if HAS_X_SCALE:
                x_scale = tl.load(x_scale_row + k0 // GROUP, mask=inside, other=0.0)
                partial = partial * x_scale[:, None]
            acc += partial * scale[None, :]

    fits = (m[:, None] < num_rows) & (n[None, :] < num_columns)
    line = (piece * num_rows + m).to(tl.int64)
    y = y_ptr + line[:, None] * num_columns + n[None, :]
    tl.store(y, cast(acc, y_ptr.dtype.element_ty), mask=fits)


@triton.jit
def sum_pieces_kernel(partial_ptr, y_ptr, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """y = the sum over pieces of K, in their order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for piece in tl.static_range(SPLITS):
        total += tl.load(partial_ptr + piece * size + at, mask=inside, other=0.0)
    tl.store(y_ptr + at, cast(total, y_ptr.dtype.element_ty), mask=inside)


def _launch(
    x_MK: torch.Tensor,
    x_scale_MG: torch.Tensor | None,
    weight_NK: torch.Tensor,
    weight_scale: torch.Tensor,
    y_SMN: torch.Tensor,
    tile: Tile,
    block: int,
    is_native: bool,
) -> None:
    (splits, m, n), k = y_SMN.shape, x_MK.shape[1]
    starts = x_MK.data_ptr() | weight_NK.data_ptr()
    is_aligned = k % (tile.depth * splits) == 0 and x_MK.stride(0) % 16 == 0 and starts % 16 == 0
    scale = weight_scale.contiguous()
    block_fp8_gemm_kernel[(triton.cdiv(m, tile.rows) * triton.cdiv(n, tile.columns), splits)](
        x_MK if is_native or x_scale_MG is None else x_MK.view(torch.uint8),
        x_scale_MG.contiguous() if x_scale_MG is not None else scale,
        weight_NK if is_native else weight_NK.view(torch.uint8),
        scale.view(torch.uint8) if is_e8m0(scale) else scale,
        y_SMN,
        m,
        n,
        k,
        x_MK.stride(0),
        BLOCK=block,
        GROUP=FP8_GROUP,
        HAS_X_SCALE=x_scale_MG is not None,
        IS_NATIVE=is_native,
        IS_ALIGNED=is_aligned,
        SPLITS=splits,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.columns,
        BLOCK_K=tile.depth,
        GROUP_M=ROWS_TOGETHER,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _product(
    x_MK: torch.Tensor,
    x_scale_MG: torch.Tensor | None,
    weight_NK: torch.Tensor,
    weight_scale: torch.Tensor,
    block: int,
    out_dtype: torch.dtype,
    is_native: bool,
) -> torch.Tensor:
    (m, k), n = x_MK.shape, weight_NK.shape[0]
    y_MN = torch.empty(m, n, dtype=out_dtype, device=x_MK.device)
    if m == 0 or n == 0 or k == 0:
        return y_MN.zero_()
    x_MK = x_MK if x_MK.stride(-1) == 1 else x_MK.contiguous()
    unit = matrix_unit(device_traits(x_MK.device.type, x_MK.device.index or 0))
    operand = "wide" if x_scale_MG is None else "e4m3" if is_native else "bytes"
    tile = tile_for(unit, m, operand, block)
    splits = split_count(tile, m, n, k)
    y_SMN = y_MN[None]
    if splits > 1:
        y_SMN = torch.empty(splits, m, n, dtype=torch.float32, device=x_MK.device)
    weight_NK = weight_NK.contiguous()
    _launch(x_MK, x_scale_MG, weight_NK, weight_scale, y_SMN, tile, block, is_native)
    if splits > 1:
        grid = (triton.cdiv(m * n, SUM_BLOCK),)
        sum_pieces_kernel[grid](y_SMN, y_MN, m * n, SPLITS=splits, BLOCK=SUM_BLOCK)
    return y_MN


def block_fp8_gemm(
    x_MK: torch.Tensor,
    x_scale_MG: torch.Tensor | None,
    weight_NK: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    block: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """e4m3 × e4m3 on the matrix unit. See `kernels.ops.block_fp8_gemm.block_fp8_gemm`."""
    return _product(x_MK, x_scale_MG, weight_NK, weight_scale, block, out_dtype, True)


def block_fp8_gemm_decoded(
    x_MK: torch.Tensor,
    x_scale_MG: torch.Tensor | None,
    weight_NK: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    block: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The same with operands decoded to bf16, or to x's own 16 bits, in the kernel."""
    return _product(x_MK, x_scale_MG, weight_NK, weight_scale, block, out_dtype, False)
