"""Attention of one new token a sequence: the keys in splits, then the splits merged."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.full_attention.tiles import Tile, block_dim, choose_tile
from kernels.ops.full_attention.triton_kernel import (
    LN_2,
    LOG2_E,
    LOWEST,
    is_aligned,
    last_dense,
    load_rows,
    store_rows,
)
from kernels.ops.paged_decode.tiles import TILES
from kernels.ops.paged_prefill.triton_kernel import attend_pages, start_softmax
from kernels.runtime import device_traits

# B sequences, H query heads, K key/value heads, G query heads of a key/value head, D head dim,
# P pages, Z page size, M pages of a row of the table, X splits.


@triton.jit
def paged_decode_kernel(
    q_ptr,
    cache_ptr,
    length_ptr,
    table_ptr,
    partial_ptr,
    partial_lse_ptr,
    q_stride,
    q_head_stride,
    page_stride,
    slot_stride,
    value_offset,
    kv_head_stride,
    table_stride,
    num_heads,
    scale_log2,
    window,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One program a split of a sequence's keys, for all query heads of a key/value head."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    split = tl.program_id(0)
    num_splits = tl.num_programs(0)
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    num_keys = tl.load(length_ptr + sequence)
    member = tl.arange(0, ROWS)
    is_row = member < GROUP
    head = kv_head * GROUP + member
    q_row = q_ptr + sequence * q_stride + head * q_head_stride
    q = load_rows(q_row, is_row, HEAD_DIM, BLOCK_D, True, PADDED, ALIGNED)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(num_keys - window, 0) // KEYS * KEYS
    # A sequence's own keys are shared out, in whole tiles, whatever the others' lengths.
    span = tl.cdiv(tl.cdiv(num_keys - first, num_splits), KEYS) * KEYS
    low = first + split * span
    high = tl.minimum(low + span, num_keys)
    position = tl.zeros_like(member) + num_keys - 1
    k_ptr = cache_ptr + kv_head * kv_head_stride
    table_ptr += sequence * table_stride
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    for start in range(low, high, KEYS):
        acc, total, peak = attend_pages(
            q, position, k_ptr, table_ptr, start, num_keys, acc, total, peak,
            page_stride, slot_stride, value_offset, HEAD_DIM, scale_log2, window,
            HEAD_DIM, BLOCK_D, KEYS, PAGE, HAS_WINDOW, True, ALIGNED,
        )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    out = (sequence * num_heads + head) * num_splits + split
    store_rows(partial_ptr + out * HEAD_DIM, acc, is_row, HEAD_DIM, PADDED, ALIGNED)
    tl.store(partial_lse_ptr + out, peak + tl.log2(total), mask=is_row)


@triton.jit
def merge_splits_kernel(
    partial_ptr,
    partial_lse_ptr,
    sink_ptr,
    o_ptr,
    lse_ptr,
    num_heads,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_SINK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One program a head of a sequence: its splits weighted by their shares of the denominator."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    head = tl.program_id(0)
    out = tl.program_id(1).to(tl.int64) * num_heads + head
    split = tl.arange(0, SPLITS)
    is_split = split < num_splits
    slot = out * num_splits + split
    lse = tl.load(partial_lse_ptr + slot, mask=is_split, other=float("-inf"))
    one = tl.arange(0, 1)
    total, peak = start_softmax(sink_ptr, head + one, one < 1, 1, HAS_SINK)
    higher = tl.maximum(peak, tl.max(lse, axis=0))
    share = tl.exp2(lse - tl.max(higher, axis=0))
    total = total * tl.exp2(peak - higher) + tl.sum(share, axis=0)
    partial_row = partial_ptr + slot * HEAD_DIM
    partial = load_rows(partial_row, is_split, HEAD_DIM, BLOCK_D, True, PADDED, ALIGNED)
    o = tl.sum(partial * share[:, None], axis=0)[None, :] / tl.where(total > 0, total, 1.0)[:, None]
    store_rows(o_ptr + (out + one) * HEAD_DIM, o, one < 1, HEAD_DIM, PADDED, ALIGNED)
    tl.store(lse_ptr + out + one, (higher + tl.log2(total)) * LN_2)


MAX_SPLITS = 32
# Programs that keep every multiprocessor busy while their loads are under way.
PROGRAMS_EACH = 4


def num_splits_for(capacity: int, tile: Tile, num_groups: int, num_processors: int) -> int:
    """Splits that fill the device, each of at least one tile of the longest row possible."""
    wanted = -(-PROGRAMS_EACH * num_processors // num_groups)
    return max(1, min(wanted, -(-capacity // tile.keys), MAX_SPLITS))


def _num_processors(device: torch.device) -> int:
    if device.type == "cpu":  # interpreted: enough for several splits
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def paged_decode(
    q_BHD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    sink_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch splits, then the merge. See `kernels.ops.paged_decode.paged_decode`."""
    num_rows, num_heads, head_dim = q_BHD.shape
    device, page = q_BHD.device, cache_PZ2KD.shape[1]
    o_BHD = torch.empty(q_BHD.shape, dtype=q_BHD.dtype, device=device)
    lse_BH = torch.empty(num_rows, num_heads, dtype=torch.float32, device=device)
    if o_BHD.numel() == 0:
        return o_BHD, lse_BH
    q_BHD = last_dense(q_BHD)
    num_kv_heads = cache_PZ2KD.shape[3]
    group = num_heads // num_kv_heads
    traits = device_traits(device.type, device.index or 0)
    tile = choose_tile(TILES, traits, head_dim, q_BHD.element_size())
    capacity = min(table_BM.shape[1] * page, (window or 1 << 62) + tile.keys)
    groups = num_rows * num_kv_heads
    aligned = is_aligned(q_BHD, cache_PZ2KD)
    num_splits = num_splits_for(capacity, tile, groups, _num_processors(device))
    shape = (num_rows, num_heads, num_splits)
    partial = torch.empty(*shape, head_dim, dtype=torch.float32, device=device)
    partial_lse = torch.empty(shape, dtype=torch.float32, device=device)
    paged_decode_kernel[(num_splits, num_kv_heads, num_rows)](
        q_BHD,
        cache_PZ2KD,
        lengths_B,
        table_BM,
        partial,
        partial_lse,
        *q_BHD.stride()[:2],
        *cache_PZ2KD.stride()[:4],
        table_BM.stride(0),
        num_heads,
        scale * LOG2_E.value,
        window or 0,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        BLOCK_D=block_dim(head_dim),
        KEYS=tile.keys,
        PAGE=page,
        HAS_WINDOW=window is not None,
        ALIGNED=aligned,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    merge_splits_kernel[(num_heads, num_rows)](
        partial,
        partial_lse,
        sink_H if sink_H is not None else lse_BH,
        o_BHD,
        lse_BH,
        num_heads,
        num_splits,
        HEAD_DIM=head_dim,
        BLOCK_D=block_dim(head_dim),
        SPLITS=triton.next_power_of_2(num_splits),
        HAS_SINK=sink_H is not None,
        ALIGNED=aligned,
    )
    return o_BHD, lse_BH
