"""Attention of all heads of a token to the rows that an index names; rows serve as key and value.

The core of the sparse attentions: latent rows of MLA, and shared rows with a window and a sink.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.sparse_mla.rows import Rows, Selection
from kernels.ops.sparse_mla.tiles import (
    CHUNK,
    TAIL_CODES,
    choose_tile,
    num_splits,
    row_constants,
)
from kernels.runtime import device_traits
from kernels.triton_numerics import IS_INTERPRETED, cast

# T tokens, H heads, D width of a row (N values and R tail), K rows of an index, S splits.

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Below any score and finite: a token that sees no row must not make NaN of inf - inf.
LOWEST = tl.constexpr(-1.0e38)

TAIL_APART = tl.constexpr(TAIL_CODES["apart"])
TAIL_INSIDE = tl.constexpr(TAIL_CODES["inside"])


@triton.jit
def product(a, b, acc):
    """acc + a · b; float32 operands are not cut to TF32."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def decode_e4m3(byte, HAS_E4M3: tl.constexpr):
    """Bytes of e4m3fn as float32, by conversion or, where the family has none, by its bits.

    The seven low bits, moved to those of a float16, are the value times 2^-8, subnormals included.
    """
    if HAS_E4M3:
        return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        wide = byte.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def slice_columns(SLICES: tl.constexpr, SLICE: tl.constexpr):
    """Column of each place of a row cut into slices, (SLICES, 1, SLICE)."""
    first = tl.arange(0, SLICES)[:, None, None] * SLICE
    return first + tl.arange(0, SLICE)[None, None, :]


@triton.jit
def load_index(index_ptr, tile, num_rows, KEYS: tl.constexpr):
    """Rows of a tile of an index, -1 beyond its end."""
    place = tile * KEYS + tl.arange(0, KEYS)
    return tl.load(index_ptr + place, mask=place < num_rows, other=-1).to(tl.int32)


@triton.jit
def row_starts(pool_ptr, where, stride, ALIGNED: tl.constexpr):
    """Addresses of the rows of a pool; where 16 bytes divide them, loads are as wide."""
    if ALIGNED:
        return tl.multiple_of(pool_ptr + where * stride, (16, 16, 16))
    else:
        return pool_ptr + where * stride


@triton.jit
def load_rows(
    row, values_ptr, scale_ptr, tail_ptr, values_stride, scale_stride, tail_stride,
    N: tl.constexpr, R: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr,
    TAIL_SLICE: tl.constexpr, GROUP: tl.constexpr, TAIL: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Rows in slices, as they are stored: values (SLICES, rows, SLICE), scales, tail.

    Zeros where the row is -1. What a format has not is a copy of the values.
    """
    first = tl.arange(0, SLICES)[:, None, None] * SLICE
    column = slice_columns(SLICES, SLICE)
    where = row.to(tl.int64)[None, :, None]
    is_row = where >= 0
    is_value = is_row
    if N != SLICES * SLICE:
        is_value = is_row & (column < N)
    values = row_starts(values_ptr, where, values_stride, ALIGNED)
    x = tl.load(values + column, mask=is_value, other=0)
    scale = x
    if GROUP != 0:
        scales = scale_ptr + where * scale_stride + first // GROUP
        scale = tl.load(scales, mask=is_row & (first < N), other=0)
        if scale.dtype == tl.uint8:
            scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    tail = x
    tails = row_starts(tail_ptr, where, tail_stride, ALIGNED)
    if TAIL == TAIL_INSIDE:
        is_tail = is_row & (column >= N) & (column < N + R)
        tail = tl.load(tails + (column - N), mask=is_tail, other=0.0)
    if TAIL == TAIL_APART:
        column = slice_columns(SLICES, TAIL_SLICE)
        tail = tl.load(tails + column, is_row & (column < R), other=0.0)
    return x, scale, tail


@triton.jit
def decode_rows(
    x, scale, tail, dtype: tl.constexpr, N: tl.constexpr, SLICES: tl.constexpr,
    SLICE: tl.constexpr, GROUP: tl.constexpr, TAIL: tl.constexpr, HAS_E4M3: tl.constexpr,
):  # fmt: skip
    """Loaded rows as (SLICES, rows, SLICE) in `dtype`: e4m3 times its scale, the tail in place."""
    if GROUP != 0:
        x = cast(decode_e4m3(x, HAS_E4M3) * scale, dtype)
    if TAIL == TAIL_INSIDE:
        x = tl.where(slice_columns(SLICES, SLICE) < N, x, tail.to(dtype))
    return x


@triton.jit
def used_length(index_ptr, num_rows, CHUNK: tl.constexpr):
    """Length of an index up to its last row that is not -1."""
    used = 0
    for start in range(0, num_rows, CHUNK):
        place = start + tl.arange(0, CHUNK)
        row = tl.load(index_ptr + place, mask=place < num_rows, other=-1)
        used = tl.maximum(used, tl.max(tl.where(row >= 0, place + 1, 0), axis=0))
    return used


@triton.jit
def attend_rows(
    q, q_tail, acc, total, peak, index_ptr, first, last, num_rows,
    values_ptr, scale_ptr, tail_ptr, values_stride, scale_stride, tail_stride, scale_log2,
    N: tl.constexpr, R: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr,
    TAIL_SLICE: tl.constexpr, GROUP: tl.constexpr, TAIL: tl.constexpr, KEYS: tl.constexpr,
    ALIGNED: tl.constexpr, HAS_E4M3: tl.constexpr,
):  # fmt: skip
    """Take the tiles first … last - 1 of an index into the running softmax.

    The products run in slices of the columns, one or more a warp: a warp holds its slice of the
    queries and of the output, and none holds what another does. The rows of a tile are loaded
    while the one before is multiplied, and their places one tile earlier still.
    """
    HEADS: tl.constexpr = q.shape[1]
    row = load_index(index_ptr, first, num_rows, KEYS)
    later = load_index(index_ptr, first + 1, num_rows, KEYS)
    stored, scale, tail = load_rows(
        row, values_ptr, scale_ptr, tail_ptr, values_stride, scale_stride, tail_stride,
        N, R, SLICES, SLICE, TAIL_SLICE, GROUP, TAIL, ALIGNED,
    )  # fmt: skip
    for tile in range(first, last):
        x = decode_rows(stored, scale, tail, q.dtype, N, SLICES, SLICE, GROUP, TAIL, HAS_E4M3)
        apart = tail
        inside = row >= 0
        row = later
        stored, scale, tail = load_rows(
            row, values_ptr, scale_ptr, tail_ptr, values_stride, scale_stride, tail_stride,
            N, R, SLICES, SLICE, TAIL_SLICE, GROUP, TAIL, ALIGNED,
        )  # fmt: skip
        later = load_index(index_ptr, tile + 2, num_rows, KEYS)
        sliced = product(q, tl.permute(x, (0, 2, 1)), tl.zeros([SLICES, HEADS, KEYS], tl.float32))
        if TAIL == TAIL_APART:
            sliced = product(q_tail, tl.permute(apart.to(q.dtype), (0, 2, 1)), sliced)
        scores = tl.sum(sliced, axis=0) * scale_log2
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        decay = tl.exp2(peak - higher)
        total = total * decay + tl.sum(weights, axis=1)
        wide = tl.broadcast_to(cast(weights, x.dtype)[None, :, :], (SLICES, HEADS, KEYS))
        acc = product(wide, x, acc * decay[None, :, None])
        peak = higher
    return acc, total, peak


@triton.jit
def sparse_rows_kernel(
    q_ptr, o_ptr, lse_ptr, sink_ptr,
    index_ptr, values_ptr, scale_ptr, tail_ptr,
    window_ptr, window_values_ptr, window_scale_ptr, window_tail_ptr,
    q_stride, q_head_stride, index_stride, values_stride, scale_stride, tail_stride,
    window_stride, window_values_stride, window_scale_stride, window_tail_stride,
    num_heads, num_rows, num_window, num_splits, scale_log2,
    N: tl.constexpr, R: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr,
    TAIL_SLICE: tl.constexpr, GROUP: tl.constexpr, TAIL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SINK: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, CHUNK: tl.constexpr,
    ALIGNED: tl.constexpr, HAS_E4M3: tl.constexpr,
):  # fmt: skip
    """One program HEADS heads of a token over one split of its rows, the window's rows first."""
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = head < num_heads
    OUT: tl.constexpr = N + R if TAIL == TAIL_INSIDE else N
    column = slice_columns(SLICES, SLICE)
    is_inside = is_head[None, :, None] & (column < OUT)
    q_row = q_ptr + token * q_stride + head * q_head_stride
    q = tl.load(q_row[None, :, None] + column, mask=is_inside, other=0.0)
    q_tail = q
    if TAIL == TAIL_APART:
        tail_column = slice_columns(SLICES, TAIL_SLICE)
        is_tail = is_head[None, :, None] & (tail_column < R)
        q_tail = tl.load(q_row[None, :, None] + N + tail_column, mask=is_tail, other=0.0)
    acc = tl.zeros([SLICES, HEADS, SLICE], tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    peak = tl.full([HEADS], LOWEST, tl.float32)
    if HAS_SINK:
        sink = tl.load(sink_ptr + head, mask=is_head & (split == 0), other=float("-inf"))
        sink = sink.to(tl.float32) * LOG2_E
        peak = tl.maximum(sink, LOWEST)
        total = tl.exp2(sink - peak)
    index_ptr += token * index_stride
    num_tiles = tl.cdiv(used_length(index_ptr, num_rows, CHUNK), KEYS)
    num_window_tiles = 0
    if HAS_WINDOW:
        window_ptr += token * window_stride
        num_window_tiles = tl.cdiv(used_length(window_ptr, num_window, CHUNK), KEYS)
    share = tl.cdiv(num_window_tiles + num_tiles, num_splits)
    first = split * share
    last = tl.minimum(first + share, num_window_tiles + num_tiles)
    if HAS_WINDOW:
        acc, total, peak = attend_rows(
            q, q_tail, acc, total, peak,
            window_ptr, first, tl.minimum(last, num_window_tiles), num_window,
            window_values_ptr, window_scale_ptr, window_tail_ptr,
            window_values_stride, window_scale_stride, window_tail_stride, scale_log2,
            N, R, SLICES, SLICE, TAIL_SLICE, GROUP, TAIL, KEYS, ALIGNED, HAS_E4M3,
        )  # fmt: skip
    acc, total, peak = attend_rows(
        q, q_tail, acc, total, peak,
        index_ptr, tl.maximum(first - num_window_tiles, 0), last - num_window_tiles, num_rows,
        values_ptr, scale_ptr, tail_ptr, values_stride, scale_stride, tail_stride, scale_log2,
        N, R, SLICES, SLICE, TAIL_SLICE, GROUP, TAIL, KEYS, ALIGNED, HAS_E4M3,
    )  # fmt: skip
    acc *= (1.0 / tl.where(total > 0, total, 1.0))[None, :, None]
    out = (token * num_splits + split) * num_heads + head
    o_row = o_ptr + out[None, :, None] * OUT + column
    tl.store(o_row, cast(acc, o_ptr.dtype.element_ty), mask=is_inside)
    tl.store(lse_ptr + out, (peak + tl.log2(total)) * LN_2, mask=is_head)


@triton.jit
def merge_splits_kernel(
    part_ptr, part_lse_ptr, o_ptr, lse_ptr, num_heads, num_splits,
    OUT: tl.constexpr, BLOCK_OUT: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One program a head of a token: o = Σ exp(lse_s - lse) · o_s, lse = log Σ exp(lse_s)."""
    row = tl.program_id(0).to(tl.int64)
    token = row // num_heads
    split = tl.arange(0, SPLITS)
    part = (token * num_splits + split) * num_heads + row % num_heads
    is_split = split < num_splits
    lse = tl.load(part_lse_ptr + part, mask=is_split, other=float("-inf")) * LOG2_E
    peak = tl.maximum(tl.max(lse, axis=0), LOWEST)
    weights = tl.exp2(lse - peak)
    total = tl.sum(weights, axis=0)
    column = tl.arange(0, BLOCK_OUT)
    mask = is_split[:, None] & (column < OUT)[None, :]
    parts = tl.load(part_ptr + part[:, None] * OUT + column[None, :], mask=mask, other=0.0)
    o = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(o_ptr + row * OUT + column, cast(o, o_ptr.dtype.element_ty), mask=column < OUT)
    tl.store(lse_ptr + row, (peak + tl.log2(total)) * LN_2)


def attend(
    q_THD: torch.Tensor,
    rows: Rows,
    index_TK: torch.Tensor,
    *,
    scale: float,
    phase: str,
    is_tail_value: bool,
    window: Selection | None = None,
    sink_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch a program for each token, group of heads and, in decoding, split of the rows.

    Values are the first N columns, or all with `is_tail_value`. `window` has rows of the same
    format as `rows`.
    """
    num_tokens, num_heads, _ = q_THD.shape
    width = rows.width if is_tail_value else rows.num_values
    device = q_THD.device
    o = torch.empty(num_tokens, num_heads, width, dtype=q_THD.dtype, device=device)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=device)
    if o.numel() == 0:
        return o, lse
    traits = device_traits(device.type, device.index or 0)
    tile = choose_tile(traits, num_heads, q_THD.element_size())
    window_rows = window.rows if window is not None else rows
    window_index = window.index_TK if window is not None else index_TK
    num_window = window_index.shape[1] if window is not None else 0
    num_groups = triton.cdiv(num_heads, tile.heads)
    splits = 1
    if phase == "decode":
        num_tiles = triton.cdiv(index_TK.shape[1], tile.keys) + triton.cdiv(num_window, tile.keys)
        splits = num_splits(num_tokens * num_groups, num_tiles, num_processors(device))
    part, part_lse = o, lse
    if splits > 1:
        part = torch.empty(num_tokens, splits, num_heads, width, dtype=torch.float32, device=device)
        part_lse = torch.empty(num_tokens, splits, num_heads, dtype=torch.float32, device=device)
    q_THD = q_THD if q_THD.stride(-1) == 1 else q_THD.contiguous()
    index_TK, window_index = index_TK.contiguous(), window_index.contiguous()
    sparse_rows_kernel[(num_tokens, num_groups, splits)](
        q_THD,
        part,
        part_lse,
        sink_H if sink_H is not None else part_lse,
        index_TK,
        *_pointers(rows),
        window_index,
        *_pointers(window_rows),
        *q_THD.stride()[:2],
        index_TK.stride(0),
        *_strides(rows),
        window_index.stride(0),
        *_strides(window_rows),
        num_heads,
        index_TK.shape[1],
        num_window,
        splits,
        scale * LOG2_E.value,
        HAS_WINDOW=window is not None,
        HAS_SINK=sink_H is not None,
        HEADS=tile.heads,
        KEYS=tile.keys,
        CHUNK=CHUNK,
        ALIGNED=is_aligned(rows) and is_aligned(window_rows),
        HAS_E4M3=traits.fp8_format == "e4m3fn",
        **row_constants(
            tile, rows.num_values, rows.num_tail, rows.group, is_tail_value=is_tail_value
        ),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if splits > 1:
        merge_splits_kernel[(num_tokens * num_heads,)](
            part, part_lse, o, lse, num_heads, splits,
            OUT=width, BLOCK_OUT=triton.next_power_of_2(width),
            SPLITS=triton.next_power_of_2(splits),
        )  # fmt: skip
    return o, lse


def num_processors(device: torch.device) -> int:
    """Multiprocessors of a device; four where it is a CPU that interprets."""
    if device.type == "cpu":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def _pointers(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, scales and tail; bytes where the interpreter or a family knows no such dtype."""
    values, scales = rows.values_PN, rows.scales_PG
    if scales is None:
        scales = values
    else:
        values = values.view(torch.uint8)
        scales = scales if scales.dtype == torch.float32 else scales.view(torch.uint8)
    return values, scales, values if rows.tail_PR is None else rows.tail_PR


def is_aligned(rows: Rows) -> bool:
    """Whether 16 bytes divide where every row of values and of tails begins."""
    parts = [rows.values_PN, *([] if rows.tail_PR is None else [rows.tail_PR])]
    starts = (part.data_ptr() for part in parts)
    strides = (part.stride(0) * part.element_size() for part in parts)
    return all(number % 16 == 0 for number in (*starts, *strides))


def _strides(rows: Rows) -> tuple[int, int, int]:
    """Row strides of values, scales and tail; 0 for what is not there."""
    parts = (rows.values_PN, rows.scales_PG, rows.tail_PR)
    values, scales, tail = (0 if part is None else part.stride(0) for part in parts)
    return values, scales, tail


def sparse_mla(
    q_THD: torch.Tensor, rows: Rows, index_TK: torch.Tensor, *, scale: float, phase: str = "prefill"
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.sparse_mla.sparse_mla`."""
    return attend(q_THD, rows, index_TK, scale=scale, phase=phase, is_tail_value=False)
