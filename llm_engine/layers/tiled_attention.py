"""Attention in tiles of positions that start at fixed places, over keys up to the tile's end.

What a row becomes depends on its own tokens alone; see `llm_engine.layers.tiles`.
"""

# T rows of a tile or of a step, B sequences, H query heads, K key/value heads, G query heads of a
# key/value head, D head dim, P pages in all, Z page size, M pages of the longest row, J keys of a
# tile.

import torch

from llm_engine.layers.tiles import TILE_ROWS


def paged_decode(
    q_BHD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, None]:
    """As `kernels.ops.paged_decode`, the output alone, with the bits that a chunk would yield."""
    bounds = torch.arange(len(q_BHD) + 1)
    return paged_prefill(q_BHD, cache_PZ2KD, bounds, lengths_B, table_BM, scale=scale)


def paged_prefill(
    q_THD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, None]:
    """As `kernels.ops.paged_prefill`, the output alone, in tiles of absolute positions."""
    bounds: list[int] = cu_seqlens_q.tolist()
    o_THD = torch.empty_like(q_THD)
    for b, length in enumerate(lengths_B.tolist()):
        start = length - (bounds[b + 1] - bounds[b])
        keys = _keys(cache_PZ2KD, table_BM[b], length)
        for tile in range(start // TILE_ROWS, -(-length // TILE_ROWS)):
            first, last = max(start, tile * TILE_ROWS), min(length, (tile + 1) * TILE_ROWS)
            rows = slice(bounds[b] + first - start, bounds[b] + last - start)
            offset = first - tile * TILE_ROWS
            o_THD[rows] = _attend_tile(q_THD[rows], keys, tile, offset, scale)
    return o_THD, None


def _keys(cache_PZ2KD: torch.Tensor, pages_M: torch.Tensor, length: int) -> torch.Tensor:
    """Keys and values (J, 2, K, D) up to the end of the last tile, zero where none is known."""
    page_size = cache_PZ2KD.shape[1]
    num_keys = -(-length // TILE_ROWS) * TILE_ROWS
    pages_M = pages_M[: -(-length // page_size)]
    known_N2KD = cache_PZ2KD.index_select(0, pages_M).flatten(0, 1)[:length]
    keys_J2KD = known_N2KD.new_zeros((num_keys, *known_N2KD.shape[1:]))
    keys_J2KD[:length] = known_N2KD
    return keys_J2KD


def _attend_tile(
    q_RHD: torch.Tensor, keys_J2KD: torch.Tensor, tile: int, offset: int, scale: float
) -> torch.Tensor:
    """Rows `offset` … of a tile of positions over all keys up to the tile's end."""
    num_rows, num_heads, head_dim = q_RHD.shape
    num_keys = (tile + 1) * TILE_ROWS
    q_THD = q_RHD.new_zeros((TILE_ROWS, num_heads, head_dim))
    q_THD[offset : offset + num_rows] = q_RHD
    k_KJD, v_KJD = (x.transpose(0, 1) for x in keys_J2KD[:num_keys].unbind(1))
    num_kv_heads = k_KJD.shape[0]
    q_KGTD = q_THD.view(TILE_ROWS, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    scores_KGTJ = (q_KGTD @ k_KJD.unsqueeze(1).transpose(-1, -2)).float() * scale
    is_later_TJ = torch.ones(TILE_ROWS, num_keys, dtype=torch.bool).triu_(num_keys - TILE_ROWS + 1)
    probs_KGTJ = scores_KGTJ.masked_fill_(is_later_TJ, float("-inf")).softmax(dim=-1)
    o_KGTD = probs_KGTJ.to(v_KJD.dtype) @ v_KJD.unsqueeze(1)
    o_THD = o_KGTD.permute(2, 0, 1, 3).reshape(TILE_ROWS, num_heads, head_dim)
    return o_THD[offset : offset + num_rows]
