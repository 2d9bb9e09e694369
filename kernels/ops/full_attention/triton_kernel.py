"""Attention of every query to every key in one pass over the keys, with the softmax kept online."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.ops.full_attention.tiles import TILES, block_dim, choose_tile
from kernels.runtime import device_traits
from kernels.triton_numerics import IS_INTERPRETED, cast

# S queries, N keys, H heads, D head dim.

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2.0))
# Below any score and finite: a row that has seen no key yet must not make NaN of inf - inf.
LOWEST = tl.constexpr(-1.0e38)


@triton.jit
def product(a, b, acc):
    """acc + a · b; float32 operands are not cut to TF32."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def softmax_step(scores, v, acc, total, peak, scale_log2):
    """Take one tile of raw scores (-inf where masked) and values into the running softmax."""
    higher = tl.maximum(peak, tl.max(scores, axis=1) * scale_log2)
    weights = tl.exp2(scores * scale_log2 - higher[:, None])
    decay = tl.exp2(peak - higher)
    total = total * decay + tl.sum(weights, axis=1)
    acc = product(cast(weights, v.dtype), v, acc * decay[:, None])
    return acc, total, higher


@triton.jit
def row_tile(pointers, width, COLUMNS: tl.constexpr, ALIGNED: tl.constexpr):
    """Addresses of rows from those of their first values, and which columns hold a value."""
    column = tl.arange(0, COLUMNS)[None, :]
    tile = pointers[:, None] + column
    if ALIGNED:
        tile = tl.multiple_of(tile, (1, 16))
    return tile, column < width


@triton.jit
def load_rows(
    pointers, inside, width,
    COLUMNS: tl.constexpr, MASKED: tl.constexpr, PADDED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Rows of `width` values, zeros outside; MASKED: not all rows, PADDED: not all columns."""
    tile, is_column = row_tile(pointers, width, COLUMNS, ALIGNED)
    if MASKED and PADDED:
        return tl.load(tile, mask=inside[:, None] & is_column, other=0.0)
    elif MASKED:
        return tl.load(tile, mask=inside[:, None], other=0.0)
    elif PADDED:
        return tl.load(tile, mask=is_column, other=0.0)
    else:
        return tl.load(tile)


@triton.jit
def store_rows(pointers, x, inside, width, PADDED: tl.constexpr, ALIGNED: tl.constexpr):
    """Rows of `width` values, rounded to the target's dtype."""
    tile, is_column = row_tile(pointers, width, x.shape[1], ALIGNED)
    mask = inside[:, None] & is_column if PADDED else inside[:, None]
    tl.store(tile, cast(x, pointers.dtype.element_ty), mask=mask)


@triton.jit
def first_column(BLOCK_D: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the columns of this program's part of the values begin."""
    if COLUMNS != BLOCK_D:
        return tl.program_id(2) * COLUMNS
    else:
        return 0


@triton.jit
def _attend(
    q, k_ptr, v_ptr, k_stride, v_stride, width, start, num_keys, acc, total, peak, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """One tile of keys from `start`; `v_ptr` is at the first column that `acc` holds."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    key = tl.arange(0, KEYS)
    inside = start + key < num_keys
    k_row = k_ptr + tl.cast(start, tl.int64) * k_stride + key * k_stride
    v_row = v_ptr + tl.cast(start, tl.int64) * v_stride + key * v_stride
    k = load_rows(k_row, inside, HEAD_DIM, BLOCK_D, MASKED, PADDED, ALIGNED)
    scores = product(q, tl.trans(k), tl.zeros([q.shape[0], KEYS], tl.float32))
    if MASKED:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    v = load_rows(v_row, inside, width, acc.shape[1], MASKED, PADDED, ALIGNED)
    return softmax_step(scores, v, acc, total, peak, scale_log2)


@triton.jit
def full_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    num_queries,
    num_keys,
    num_heads,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One program ROWS queries of a head; programs of a head follow each other and share keys.

    Where the values of a wide head do not fit in registers, each part of COLUMNS has its program.
    """
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    is_row = row < num_queries
    row = row.to(tl.int64)
    q_row = q_ptr + head * q_head_stride + row * q_stride
    q = load_rows(q_row, is_row, HEAD_DIM, BLOCK_D, True, PADDED, ALIGNED)
    k_ptr += head * k_head_stride
    first = first_column(BLOCK_D, COLUMNS)
    width = HEAD_DIM - first
    v_ptr += head * v_head_stride + first
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    num_whole = num_keys // KEYS * KEYS
    for start in range(0, num_whole, KEYS):
        acc, total, peak = _attend(
            q, k_ptr, v_ptr, k_stride, v_stride, width, start, num_keys, acc, total, peak,
            scale_log2, HEAD_DIM, BLOCK_D, KEYS, False, ALIGNED,
        )  # fmt: skip
    if num_whole < num_keys:
        acc, total, peak = _attend(
            q, k_ptr, v_ptr, k_stride, v_stride, width, num_whole, num_keys, acc, total, peak,
            scale_log2, HEAD_DIM, BLOCK_D, KEYS, True, ALIGNED,
        )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    out = row * num_heads + head
    store_rows(o_ptr + out * HEAD_DIM + first, acc, is_row, width, PADDED, ALIGNED)
    tl.store(lse_ptr + out, (peak + tl.log2(total)) * LN_2, mask=is_row)


def last_dense(x: torch.Tensor) -> torch.Tensor:
    """`x` with neighbouring values in its last dim; a copy only where that is not so."""
    return x if x.stride(-1) == 1 else x.contiguous()


def is_aligned(*tensors: torch.Tensor) -> bool:
    """Whether every row along the last dim begins at, and has, a multiple of 16 bytes."""
    return all(
        (x.data_ptr() | x.shape[-1] * x.itemsize) % 16 == 0
        and all(stride * x.itemsize % 16 == 0 for stride in x.stride()[:-1])
        for x in tensors
    )


def full_attention(
    q_SHD: torch.Tensor, k_NHD: torch.Tensor, v_NHD: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program a tile of queries. See `kernels.ops.full_attention.full_attention`."""
    num_queries, num_heads, head_dim = q_SHD.shape
    o_SHD = torch.empty(q_SHD.shape, dtype=q_SHD.dtype, device=q_SHD.device)
    lse_SH = torch.empty(num_queries, num_heads, dtype=torch.float32, device=q_SHD.device)
    if o_SHD.numel() == 0:
        return o_SHD, lse_SH
    q_SHD, k_NHD, v_NHD = last_dense(q_SHD), last_dense(k_NHD), last_dense(v_NHD)
    traits = device_traits(q_SHD.device.type, q_SHD.device.index or 0)
    tile = choose_tile(TILES, traits, head_dim, q_SHD.element_size())
    full_attention_kernel[(triton.cdiv(num_queries, tile.rows), num_heads, tile.parts)](
        q_SHD,
        k_NHD,
        v_NHD,
        o_SHD,
        lse_SH,
        *q_SHD.stride()[:2],
        *k_NHD.stride()[:2],
        *v_NHD.stride()[:2],
        num_queries,
        k_NHD.shape[0],
        num_heads,
        scale * LOG2_E.value,
        HEAD_DIM=head_dim,
        BLOCK_D=block_dim(head_dim),
        ROWS=tile.rows,
        KEYS=tile.keys,
        COLUMNS=block_dim(head_dim) // tile.parts,
        ALIGNED=is_aligned(q_SHD, k_NHD, v_NHD),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return o_SHD, lse_SH
