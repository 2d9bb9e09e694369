"""Causal attention of the new tokens of many sequences over their pages, softmax kept online."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.full_attention.tiles import block_dim, choose_tile
from kernels.ops.full_attention.triton_kernel import (
    LN_2,
    LOG2_E,
    LOWEST,
    first_column,
    is_aligned,
    last_dense,
    load_rows,
    product,
    softmax_step,
    store_rows,
)
from kernels.ops.paged_prefill.tiles import TILES
from kernels.runtime import device_traits

# T new tokens, B sequences, H query heads, K key/value heads, D head dim, P pages, Z page size,
# M pages of a row of the table.


@triton.jit
def page_rows(cache_ptr, table_ptr, key, inside, page_stride, slot_stride, PAGE: tl.constexpr):
    """Addresses of cached rows by their positions in the sequence."""
    page = tl.load(table_ptr + key // PAGE, mask=inside, other=0).to(tl.int64)
    return cache_ptr + page * page_stride + (key % PAGE) * slot_stride


@triton.jit
def attend_pages(
    q, position, k_ptr, table_ptr, start, num_keys, acc, total, peak,
    page_stride, slot_stride, value_offset, width, scale_log2, window,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr,
    HAS_WINDOW: tl.constexpr, MASKED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One tile of cached keys from `start`, seen by rows at `position`.

    `value_offset` leads from a key to the first value that `acc` holds, of `width` values.
    """
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    key = start + tl.arange(0, KEYS)
    inside = key < num_keys
    rows = page_rows(k_ptr, table_ptr, key, inside, page_stride, slot_stride, PAGE)
    k = load_rows(rows, inside, HEAD_DIM, BLOCK_D, MASKED, PADDED, ALIGNED)
    scores = product(q, tl.trans(k), tl.zeros([q.shape[0], KEYS], tl.float32))
    if MASKED:
        seen = key[None, :] <= position[:, None]
        if HAS_WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    v_rows = rows + value_offset
    v = load_rows(v_rows, inside, width, acc.shape[1], MASKED, PADDED, ALIGNED)
    return softmax_step(scores, v, acc, total, peak, scale_log2)


@triton.jit
def start_softmax(sink_ptr, head, inside, ROWS: tl.constexpr, HAS_SINK: tl.constexpr):
    """Denominator and peak before the first key: the sink's share, or nothing."""
    if HAS_SINK:
        sink = tl.load(sink_ptr + head, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        peak = tl.maximum(sink, LOWEST)
        return tl.exp2(sink - peak), peak
    else:
        return tl.zeros([ROWS], tl.float32), tl.full([ROWS], LOWEST, tl.float32)


@triton.jit
def _sequence_of(tile, cu_ptr, num_sequences, ROWS: tl.constexpr):
    """Which sequence a tile belongs to: sequence b begins at tile cu[b] // ROWS + b."""
    low = 0
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_ptr + middle) // ROWS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def paged_prefill_kernel(
    q_ptr,
    cache_ptr,
    cu_ptr,
    length_ptr,
    table_ptr,
    sink_ptr,
    o_ptr,
    lse_ptr,
    q_stride,
    q_head_stride,
    page_stride,
    slot_stride,
    value_offset,
    kv_head_stride,
    table_stride,
    num_sequences,
    num_heads,
    scale_log2,
    window,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One program ROWS new tokens of a head; the longest tiles, the last ones, start first."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    sequence = _sequence_of(tile, cu_ptr, num_sequences, ROWS)
    begin = tl.load(cu_ptr + sequence)
    num_new = tl.load(cu_ptr + sequence + 1) - begin
    first = (tile - (begin // ROWS + sequence)) * ROWS
    if first >= num_new:
        return
    num_keys = tl.load(length_ptr + sequence)
    row = first + tl.arange(0, ROWS)
    is_row = row < num_new
    position = num_keys - num_new + row
    token = (begin + row).to(tl.int64)
    q_row = q_ptr + token * q_stride + head * q_head_stride
    q = load_rows(q_row, is_row, HEAD_DIM, BLOCK_D, True, PADDED, ALIGNED)
    k_ptr = cache_ptr + (head // GROUP) * kv_head_stride
    table_ptr += sequence.to(tl.int64) * table_stride
    column = first_column(BLOCK_D, COLUMNS)
    width = HEAD_DIM - column
    value_offset += column
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    total, peak = start_softmax(sink_ptr, head + tl.zeros_like(row), is_row, ROWS, HAS_SINK)
    # Keys below `whole` are seen by every row; those from there on, and where a window begins,
    # are masked.
    first_position = num_keys - num_new + first
    end = tl.minimum(first_position + ROWS, num_keys)
    low = 0
    whole = (first_position + 1) // KEYS * KEYS
    if HAS_WINDOW:
        low = tl.maximum(first_position - window + 1, 0) // KEYS * KEYS
        whole = low
    for start in range(low, whole, KEYS):
        acc, total, peak = attend_pages(
            q, position, k_ptr, table_ptr, start, num_keys, acc, total, peak,
            page_stride, slot_stride, value_offset, width, scale_log2, window,
            HEAD_DIM, BLOCK_D, KEYS, PAGE, HAS_WINDOW, False, ALIGNED,
        )  # fmt: skip
    for start in range(whole, end, KEYS):
        acc, total, peak = attend_pages(
            q, position, k_ptr, table_ptr, start, num_keys, acc, total, peak,
            page_stride, slot_stride, value_offset, width, scale_log2, window,
            HEAD_DIM, BLOCK_D, KEYS, PAGE, HAS_WINDOW, True, ALIGNED,
        )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    out = token * num_heads + head
    store_rows(o_ptr + out * HEAD_DIM + column, acc, is_row, width, PADDED, ALIGNED)
    tl.store(lse_ptr + out, (peak + tl.log2(total)) * LN_2, mask=is_row)


def paged_prefill(
    q_THD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    sink_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch a program for each tile there can be. See `kernels.ops.paged_prefill`."""
    num_tokens, num_heads, head_dim = q_THD.shape
    o_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
    lse_TH = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q_THD.device)
    if o_THD.numel() == 0:
        return o_THD, lse_TH
    q_THD = last_dense(q_THD)
    traits = device_traits(q_THD.device.type, q_THD.device.index or 0)
    tile = choose_tile(TILES, traits, head_dim, q_THD.element_size())
    num_sequences = lengths_B.shape[0]
    # Every sequence may begin a tile of its own: known without reading the lengths back.
    num_tiles = num_tokens // tile.rows + num_sequences
    paged_prefill_kernel[(num_heads, num_tiles, tile.parts)](
        q_THD,
        cache_PZ2KD,
        cu_seqlens_q,
        lengths_B,
        table_BM,
        sink_H if sink_H is not None else lse_TH,
        o_THD,
        lse_TH,
        *q_THD.stride()[:2],
        *cache_PZ2KD.stride()[:4],
        table_BM.stride(0),
        num_sequences,
        num_heads,
        scale * LOG2_E.value,
        window or 0,
        GROUP=num_heads // cache_PZ2KD.shape[3],
        HEAD_DIM=head_dim,
        BLOCK_D=block_dim(head_dim),
        ROWS=tile.rows,
        KEYS=tile.keys,
        COLUMNS=block_dim(head_dim) // tile.parts,
        PAGE=cache_PZ2KD.shape[1],
        HAS_WINDOW=window is not None,
        HAS_SINK=sink_H is not None,
        ALIGNED=is_aligned(q_THD, cache_PZ2KD),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return o_THD, lse_TH
