"""Causal attention over pages on a CPU: flash attention over views, without a copy of the heads."""

from __future__ import annotations

import torch

from kernels.ops.full_attention import merge_lse
from kernels.ops.full_attention.cpu import flash

# T new tokens, B sequences, N cached tokens, H query heads, K key/value heads, G query heads of a
# key/value head, D head dim, P pages, Z page size, M pages of a row of the table.


# A past this many times as long as the chunk is attended without a mask and merged; for a shorter
# one the mask costs less than the merge.
SEEN_WHOLE = 3
# The mask also costs what it hides, half of the chunk's square. From so many tokens on that is more
# than the merge, for any past as long as the chunk: 1024 tokens after as many took 0.75 to 0.9 of
# the masked time, with and without matrix units, 512 after as many the same.
LONG_CHUNK = 768


def gather_rows(cache_PZ2KD: torch.Tensor, pages_M: torch.Tensor) -> torch.Tensor:
    """Rows (N, 2, K, D) of pages; a view where they lie in one run."""
    pages: list[int] = pages_M.tolist()
    first, end = pages[0], pages[0] + len(pages)
    if pages == list(range(first, end)):
        return cache_PZ2KD[first:end].flatten(0, 1)
    return cache_PZ2KD.index_select(0, pages_M).flatten(0, 1)


def with_sink(
    o: torch.Tensor, lse: torch.Tensor, sink_H: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (…, H, D) and log-sum-exp (…, H) with the sinks' share of the denominator."""
    if sink_H is None:
        return o, lse
    total = torch.logaddexp(lse, sink_H.to(lse.dtype))
    return (o * (lse - total).exp().unsqueeze(-1)).to(o.dtype), total


def _attend(
    q_KGTD: torch.Tensor,
    kv_N2KD: torch.Tensor,
    scale: float,
    mask_TN: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A key/value head is a batch entry whose query heads share it through a stride of 0."""
    shape = (*q_KGTD.shape[:2], kv_N2KD.shape[0], q_KGTD.shape[3])
    k, v = (x.transpose(0, 1).unsqueeze(1).expand(shape) for x in kv_N2KD.unbind(1))
    return flash(q_KGTD, k, v, scale=scale, mask=mask_TN, is_causal=is_causal)


def _mask(num_new: int, num_keys: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask of the last `num_new` positions over the last `num_keys` keys."""
    start = num_keys - num_new
    mask_TN = torch.full((num_new, num_keys), -torch.inf, dtype=dtype).triu_(start + 1)
    if window is not None:
        hidden_TN = torch.full_like(mask_TN, -torch.inf).tril_(start - window)
        mask_TN = torch.minimum(mask_TN, hidden_TN)
    return mask_TN


def _shortest_past(num_new: int) -> int:
    """The tokens before a chunk from which on they are seen whole."""
    return num_new if num_new >= LONG_CHUNK else SEEN_WHOLE * num_new


def _attend_sequence(
    q_THD: torch.Tensor, kv_N2KD: torch.Tensor, scale: float, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last T of N positions of one sequence: (T, H, D) and (T, H)."""
    num_new, num_heads, head_dim = q_THD.shape
    num_kv_heads = kv_N2KD.shape[2]
    if window is not None:
        kv_N2KD = kv_N2KD[max(0, kv_N2KD.shape[0] - num_new - window + 1) :]
    num_keys = kv_N2KD.shape[0]
    start = num_keys - num_new
    is_windowed = window is not None and window < num_keys
    q_KGTD = q_THD.unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)
    if start == 0 and not is_windowed:
        o, lse = _attend(q_KGTD, kv_N2KD, scale, is_causal=True)
    elif is_windowed or start < _shortest_past(num_new):
        mask_TN = _mask(num_new, num_keys, window if is_windowed else None, q_THD.dtype)
        o, lse = _attend(q_KGTD, kv_N2KD, scale, mask_TN)
    else:  # a long past is seen whole: no mask for it
        past = _attend(q_KGTD, kv_N2KD[:start], scale)
        o, lse = merge_lse(*past, *_attend(q_KGTD, kv_N2KD[start:], scale, is_causal=True))
    o_THD = o.permute(2, 0, 1, 3).reshape(num_new, num_heads, head_dim)
    return o_THD, lse.permute(2, 0, 1).reshape(num_new, num_heads)


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
    """See `kernels.ops.paged_prefill.paged_prefill`."""
    page = cache_PZ2KD.shape[1]
    bounds, lengths = cu_seqlens_q.tolist(), lengths_B.tolist()
    outputs: list[torch.Tensor] = []
    lses: list[torch.Tensor] = []
    for b, length in enumerate(lengths):
        if bounds[b] == bounds[b + 1]:
            continue
        kv_N2KD = gather_rows(cache_PZ2KD, table_BM[b, : -(-length // page)])[:length]
        q_rows = q_THD[bounds[b] : bounds[b + 1]]
        o, lse = with_sink(*_attend_sequence(q_rows, kv_N2KD, scale, window), sink_H)
        outputs.append(o)
        lses.append(lse)
    return joined(outputs, q_THD), joined(lses, q_THD[..., 0].float())


def joined(parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The parts in a row, in the dtype and, without any part, the shape of `like`."""
    if not parts:
        return torch.empty_like(like)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(like.dtype)
