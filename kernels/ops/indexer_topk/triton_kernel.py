"""Index scores of a run of keys at a time; the best so far are kept by radix selection."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from kernels.ops.indexer_topk.keys import Candidates, Keys
from kernels.ops.indexer_topk.selection.triton_kernel import select_kernel, unpack_kernel
from kernels.ops.indexer_topk.tiles import (
    SELECT_TILE,
    SELECT_WARPS,
    TILES_EACH,
    ScoreTile,
    runs,
    score_constants,
    score_tile,
)
from kernels.ops.sparse_mla.triton_kernel import decode_e4m3, product
from kernels.runtime import device_traits
from kernels.triton_numerics import cast

# T tokens, H heads, D width, S positions, K chosen, N candidate blocks.


@triton.jit
def index_scores_kernel(
    q_ptr, weight_ptr, keys_ptr, scale_ptr, table_ptr, sequence_ptr, bound_ptr, candidate_ptr,
    score_ptr,
    q_stride, q_head_stride, weight_stride, key_stride, table_stride, candidate_stride,
    score_stride, first, num_positions, num_tokens, num_heads, num_keys, tiles_each, page_size,
    scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
    KEYS: tl.constexpr, HAS_TABLE: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr, OF_BLOCKS: tl.constexpr,
    HAS_E4M3: tl.constexpr,
):  # fmt: skip
    """One program TOKENS tokens over `tiles_each` tiles of positions from `first` on.

    Writes the score of each position, or of each block of BLOCK with OF_BLOCKS; nothing where a
    whole tile lies beyond what the tokens see.
    """
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    bound = tl.load(bound_ptr + token, mask=is_token, other=0)
    bound = tl.minimum(bound, num_keys)
    line = tl.arange(0, TOKENS * HEADS)
    line_token = tl.program_id(1) * TOKENS + line // HEADS
    head = line % HEADS
    is_line = (line_token < num_tokens) & (head < num_heads)
    column = tl.arange(0, BLOCK_D)
    q_line = q_ptr + line_token.to(tl.int64) * q_stride + head * q_head_stride
    is_q = is_line[:, None] & (column < D)[None, :]
    q = tl.load(q_line[:, None] + column[None, :], mask=is_q, other=0.0)
    weights = weight_ptr + line_token.to(tl.int64) * weight_stride + head
    weight = tl.load(weights, mask=is_line, other=0.0).to(tl.float32) * scale
    one_token = tl.program_id(1).to(tl.int64) * TOKENS
    if HAS_TABLE:
        table_ptr += tl.load(sequence_ptr + one_token).to(tl.int64) * table_stride
    begin = tl.program_id(0) * tiles_each * KEYS
    end = tl.minimum(begin + tiles_each * KEYS, num_positions)
    if not HAS_CANDIDATES:
        end = tl.minimum(end, tl.max(bound, axis=0) - first)
    for start in range(begin, end, KEYS):
        offset = start + tl.arange(0, KEYS)
        position = first + offset
        is_seen = offset < num_positions
        if HAS_CANDIDATES:
            which = candidate_ptr + one_token * candidate_stride + position // BLOCK
            block = tl.load(which, mask=is_seen, other=-1)
            is_seen = is_seen & (block >= 0)
            position = block * BLOCK + position % BLOCK
        is_key = is_seen & (position < num_keys)
        row = position.to(tl.int64)
        if HAS_TABLE:
            page = tl.load(table_ptr + position // page_size, mask=is_key, other=0)
            row = page.to(tl.int64) * page_size + position % page_size
        pointers = keys_ptr + row[:, None] * key_stride + column[None, :]
        key = tl.load(pointers, mask=is_key[:, None] & (column < D)[None, :], other=0)
        if HAS_SCALE:
            key = cast(decode_e4m3(key, HAS_E4M3), q.dtype)
        products = product(q, tl.trans(key), tl.zeros([TOKENS * HEADS, KEYS], tl.float32))
        products = tl.maximum(products, 0.0) * weight[:, None]
        score = tl.sum(tl.reshape(products, (TOKENS, HEADS, KEYS)), axis=1)
        if HAS_SCALE:
            score *= tl.load(scale_ptr + row, mask=is_key, other=0.0)[None, :]
        seen = is_key[None, :] & (position[None, :] < bound[:, None])
        score = tl.where(seen, score, float("-inf"))
        line_of = score_ptr + token[:, None].to(tl.int64) * score_stride
        if OF_BLOCKS:
            best = tl.max(tl.reshape(score, (TOKENS, KEYS // BLOCK, BLOCK)), axis=2)
            block = (first + start) // BLOCK + tl.arange(0, KEYS // BLOCK)
            is_newest = (block[None, :] == ((bound - 1) // BLOCK)[:, None]) & (bound > 0)[:, None]
            best = tl.where(is_newest, float("inf"), best)
            place = start // BLOCK + tl.arange(0, KEYS // BLOCK)
            is_place = is_token[:, None] & (place * BLOCK < num_positions)[None, :]
            tl.store(line_of + place[None, :], best, mask=is_place)
        else:
            is_place = is_token[:, None] & (offset < num_positions)[None, :]
            tl.store(line_of + offset[None, :], score, mask=is_place)


def indexer_topk(
    q_THD: torch.Tensor,
    weight_TH: torch.Tensor,
    keys: Keys,
    bound_T: torch.Tensor,
    *,
    k: int,
    scale: float,
    candidates: Candidates | None = None,
    maxima_of: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score and select run by run, then sort. See `kernels.ops.indexer_topk`."""
    num_tokens, device = q_THD.shape[0], q_THD.device
    index = torch.empty(num_tokens, k, dtype=torch.int32, device=device)
    score = torch.empty(num_tokens, k, dtype=torch.float32, device=device)
    if index.numel() == 0:
        return index, score
    q_THD = q_THD if q_THD.stride(-1) == 1 else q_THD.contiguous()
    weight_TH, bound_T = weight_TH.contiguous(), bound_T.contiguous()
    num_positions, block_size = keys.num_positions, maxima_of or 1
    candidates_TN = None
    if candidates is not None:
        num_positions, block_size = candidates.num_positions, candidates.block_size
        candidates_TN = candidates.blocks_TN.contiguous()
    traits = device_traits(device.type, device.index or 0)
    is_shared = keys.table_BM is None and candidates is None
    tile = score_tile(traits, q_THD.shape[1], q_THD.element_size(), is_shared=is_shared)
    tokens_each, positions_each = runs(num_tokens, num_positions, max(block_size, tile.keys))
    for start in range(0, num_tokens, tokens_each):
        run = slice(start, min(start + tokens_each, num_tokens))
        request = Request(
            q_THD=q_THD[run],
            weight_TH=weight_TH[run],
            keys=keys_of(keys, run),
            bound_T=bound_T[run],
            candidates_TN=None if candidates_TN is None else candidates_TN[run],
            k=k,
            scale=scale,
            block_size=block_size,
            selects_blocks=maxima_of > 0,
            converts_e4m3=traits.fp8_format == "e4m3fn",
        )
        packed = _best(request, tile, num_positions, positions_each)
        if maxima_of == 0:
            packed = packed.sort(dim=-1, descending=True).values
        count = packed.numel()
        unpack_kernel[(triton.cdiv(count, SELECT_TILE),)](
            packed, score[run], index[run], count, TILE=SELECT_TILE
        )
    return index, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run of tokens asks for."""

    q_THD: torch.Tensor
    weight_TH: torch.Tensor
    keys: Keys
    bound_T: torch.Tensor
    candidates_TN: torch.Tensor | None
    k: int
    scale: float
    block_size: int
    selects_blocks: bool
    converts_e4m3: bool


def keys_of(keys: Keys, run: slice) -> Keys:
    """The keys as a run of tokens names them."""
    if keys.sequence_T is None:
        return keys
    return replace(keys, sequence_T=keys.sequence_T[run])


def _best(
    request: Request, tile: ScoreTile, num_positions: int, positions_each: int
) -> torch.Tensor:
    """The packed best of every token, by position, one run of positions after the other."""
    num_tokens, device = request.q_THD.shape[0], request.q_THD.device
    per = request.block_size if request.selects_blocks else 1
    shape = (num_tokens, triton.cdiv(positions_each, per))
    scratch = torch.empty(shape, dtype=torch.float32, device=device)
    best = torch.empty(2, num_tokens, request.k, dtype=torch.int64, device=device)
    side = 0
    for first in range(0, num_positions, positions_each):
        count = min(positions_each, num_positions - first)
        _score(request, tile, scratch, first, count)
        candidates = request.candidates_TN
        select_kernel[(num_tokens,)](
            scratch,
            request.bound_T,
            candidates if candidates is not None else request.bound_T,
            best[side],
            best[1 - side],
            scratch.stride(0),
            0 if candidates is None else candidates.stride(0),
            triton.cdiv(count, per),
            first // per,
            request.k if first > 0 else 0,
            request.k,
            TILE=SELECT_TILE,
            HAS_CANDIDATES=candidates is not None,
            BLOCK=request.block_size,
            OF_BLOCKS=request.selects_blocks,
            num_warps=SELECT_WARPS,
        )
        side = 1 - side
    return best[side]


def _score(
    request: Request, tile: ScoreTile, scratch: torch.Tensor, first: int, count: int
) -> None:
    """Write the scores of `count` positions from `first` on, for every token of the request."""
    q_THD, keys, candidates = request.q_THD, request.keys, request.candidates_TN
    num_tokens, num_heads, width = q_THD.shape
    num_tiles = triton.cdiv(count, tile.keys)
    has_scale, has_table = keys.scales_P is not None, keys.table_BM is not None
    values = keys.values_PD if keys.values_PD.stride(-1) == 1 else keys.values_PD.contiguous()
    grid = (triton.cdiv(num_tiles, TILES_EACH), triton.cdiv(num_tokens, tile.tokens))
    index_scores_kernel[grid](
        q_THD,
        request.weight_TH,
        values.view(torch.uint8) if has_scale else values,
        keys.scales_P if keys.scales_P is not None else scratch,
        keys.table_BM if keys.table_BM is not None else request.bound_T,
        keys.sequence_T if keys.sequence_T is not None else request.bound_T,
        request.bound_T,
        candidates if candidates is not None else request.bound_T,
        scratch,
        *q_THD.stride()[:2],
        request.weight_TH.stride(0),
        values.stride(0),
        keys.table_BM.stride(0) if keys.table_BM is not None else 0,
        0 if candidates is None else candidates.stride(0),
        scratch.stride(0),
        first,
        count,
        num_tokens,
        num_heads,
        keys.num_positions,
        TILES_EACH,
        keys.page_size,
        request.scale,
        HAS_TABLE=has_table,
        HAS_SCALE=has_scale,
        HAS_CANDIDATES=candidates is not None,
        BLOCK=request.block_size,
        OF_BLOCKS=request.selects_blocks,
        HAS_E4M3=request.converts_e4m3,
        **score_constants(tile, width, num_heads),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
