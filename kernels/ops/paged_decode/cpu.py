"""Attention of one new token a sequence on a CPU: rows gathered a cacheful at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.ops.full_attention.cpu import flash
from kernels.ops.paged_prefill.cpu import gather_rows, with_sink

# B sequences, R of them together, N cached tokens, H query heads, K key/value heads, G query heads
# of a key/value head, D head dim, P pages, Z page size, M pages of a row of the table.

# Gathered rows are read twice, for keys and values, straight away: they should still be in the
# last-level cache, and a larger part costs fewer calls.
GATHERED_BYTES = 4 << 20


def _batches(num_pages: list[int], page_bytes: int) -> Iterator[slice]:
    """Neighbouring sequences whose pages, padded to the longest, fit together."""
    begin, longest = 0, 0
    for b, pages in enumerate(num_pages):
        longest = max(longest, pages)
        if b > begin and (b + 1 - begin) * longest * page_bytes > GATHERED_BYTES:
            yield slice(begin, b)
            begin, longest = b, pages
    yield slice(begin, len(num_pages))


def _gather(
    cache_PZ2KD: torch.Tensor, table_RM: torch.Tensor, skipped: list[int], num_pages: list[int]
) -> torch.Tensor:
    """Rows (R, N, 2, K, D); shorter sequences repeat their first page, to be masked."""
    longest = max(num_pages)
    pages_RM = table_RM[:, :longest]
    if min(num_pages) < longest or any(skipped):
        skipped_R1, count_R1 = torch.tensor([skipped, num_pages]).unsqueeze(-1)
        page_M = torch.arange(longest)
        pages_RM = table_RM.gather(1, skipped_R1 + page_M.where(page_M < count_R1, 0))
    rows = cache_PZ2KD.index_select(0, pages_RM.reshape(-1))
    return rows.unflatten(0, (len(skipped), longest)).flatten(1, 2)


def _mask(firsts: list[int], lengths: list[int], num_keys: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask (R, 1, 1, N) of keys before each sequence's first and past its end."""
    key_N = torch.arange(num_keys)
    is_hidden_RN = key_N >= torch.tensor(lengths).unsqueeze(1)
    if any(firsts):
        is_hidden_RN |= key_N < torch.tensor(firsts).unsqueeze(1)
    mask_RN = torch.zeros(is_hidden_RN.shape, dtype=dtype).masked_fill_(is_hidden_RN, -torch.inf)
    return mask_RN[:, None, None, :]


def _attend_one(
    q_1KGD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    pages_M: torch.Tensor,
    first: int,
    length: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence sees its positions from `first` to `length`: cut out, so without a mask."""
    page = cache_PZ2KD.shape[1]
    skipped = first // page
    rows = gather_rows(cache_PZ2KD, pages_M[skipped : -(-length // page)])
    kv_N2KD = rows[first - skipped * page : length - skipped * page]
    k_1KND, v_1KND = kv_N2KD.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    return flash(q_1KGD, k_1KND, v_1KND, scale=scale)


def _attend(
    q_RKGD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    table_RM: torch.Tensor,
    firsts: list[int],
    lengths: list[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences gathered together: each sees its positions from its first to its length."""
    if len(lengths) == 1:
        return _attend_one(q_RKGD, cache_PZ2KD, table_RM[0], firsts[0], lengths[0], scale)
    page = cache_PZ2KD.shape[1]
    skipped = [first // page for first in firsts]
    num_pages = [-(-n // page) - skip for n, skip in zip(lengths, skipped, strict=True)]
    begins = [first % page for first in firsts]
    stops = [n - skip * page for n, skip in zip(lengths, skipped, strict=True)]
    num_keys = max(stops)
    kv_RN2KD = _gather(cache_PZ2KD, table_RM, skipped, num_pages)[:, :num_keys]
    k_RKND, v_RKND = kv_RN2KD.permute(2, 0, 3, 1, 4).unbind(0)
    is_whole = min(stops) == num_keys and max(begins) == 0
    mask = None if is_whole else _mask(begins, stops, num_keys, q_RKGD.dtype)
    return flash(q_RKGD, k_RKND, v_RKND, scale=scale, mask=mask)


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
    """See `kernels.ops.paged_decode.paged_decode`."""
    num_rows, num_heads, head_dim = q_BHD.shape
    page, _, num_kv_heads = cache_PZ2KD.shape[1:4]
    if q_BHD.numel() == 0:
        return torch.empty_like(q_BHD), torch.empty(num_rows, num_heads, dtype=torch.float32)
    lengths: list[int] = lengths_B.tolist()
    firsts = [0 if window is None else max(0, length - window) for length in lengths]
    q_BKGD = q_BHD.reshape(num_rows, num_kv_heads, -1, head_dim)
    if num_rows == 1:
        o, lse = _attend_one(q_BKGD, cache_PZ2KD, table_BM[0], firsts[0], lengths[0], scale)
    else:
        num_pages = [-(-n // page) - f // page for n, f in zip(lengths, firsts, strict=True)]
        page_bytes = cache_PZ2KD.stride(0) * cache_PZ2KD.itemsize
        parts = [
            _attend(q_BKGD[rows], cache_PZ2KD, table_BM[rows], firsts[rows], lengths[rows], scale)
            for rows in _batches(num_pages, page_bytes)
        ]
        o, lse = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    lse_BH = lse.reshape(num_rows, num_heads)
    return with_sink(o.reshape(num_rows, num_heads, head_dim), lse_BH, sink_H)
