"""Causal attention over pages in plain torch, one sequence after the other: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.full_attention.reference import attend
from kernels.spec import Case

# T new tokens, B sequences, N cached tokens of one, H query heads, K key/value heads, D head dim,
# P pages, Z page size, M pages of a row of the table.


def cached_rows(cache_PZ2KD: torch.Tensor, pages_M: torch.Tensor, length: int) -> torch.Tensor:
    """Keys and values (N, 2, K, D) of a sequence, gathered from its pages."""
    num_pages = -(-length // cache_PZ2KD.shape[1])
    return cache_PZ2KD[pages_M[:num_pages].long()].flatten(0, 1)[:length]


def causal_mask(num_new: int, length: int, window: int | None) -> torch.Tensor:
    """Which of `length` keys the last `num_new` positions see, as (num_new, length)."""
    position_T1 = torch.arange(length - num_new, length)[:, None]
    key_N = torch.arange(length)
    is_seen_TN = key_N <= position_T1
    if window is not None:
        is_seen_TN &= key_N > position_T1 - window
    return is_seen_TN


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
    wide = torch.promote_types(q_THD.dtype, torch.float32)
    o_THD = torch.empty_like(q_THD)
    lse_TH = torch.empty(q_THD.shape[:2], dtype=wide, device=q_THD.device)
    bounds, lengths = cu_seqlens_q.tolist(), lengths_B.tolist()
    for b, length in enumerate(lengths):
        rows = slice(bounds[b], bounds[b + 1])
        k_NKD, v_NKD = cached_rows(cache_PZ2KD, table_BM[b], length).unbind(1)
        is_seen_TN = causal_mask(bounds[b + 1] - bounds[b], length, window).to(q_THD.device)
        o_THD[rows], lse_TH[rows] = attend(
            q_THD[rows], k_NKD, v_NKD, scale=scale, is_seen_SN=is_seen_TN, sink_H=sink_H
        )
    return o_THD, lse_TH


def random_cache(
    case: Case, lengths: list[int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A cache with more pages than are used, lengths, and a table in random order."""
    sizes, page = case.sizes, case.sizes["page"]
    num_pages = max(-(-length // page) for length in lengths)
    total = len(lengths) * num_pages + 2
    shape = (total, page, 2, sizes["K"], sizes["D"])
    cache_PZ2KD = torch.randn(shape, generator=generator).to(TORCH_DTYPES[case.dtype])
    order = torch.randperm(total, generator=generator)[: len(lengths) * num_pages]
    table_BM = order.view(len(lengths), num_pages).to(torch.int32)
    return cache_PZ2KD, torch.tensor(lengths, dtype=torch.int32), table_BM


def random_options(case: Case, generator: torch.Generator) -> dict[str, Any]:
    """Scale, a window shorter than the context, and sinks, as the case asks."""
    options: dict[str, Any] = {"scale": case.sizes["D"] ** -0.5}
    if case.options.get("window") == "yes":
        options["window"] = max(1, case.sizes["S"] // 3)
    if case.options.get("sink") == "yes":
        options["sink_H"] = torch.randn(case.sizes["H"], generator=generator)
    return options


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case: T tokens shared by up to three sequences; q is a view."""
    num_tokens, heads, head_dim = (case.sizes[name] for name in ("T", "H", "D"))
    parts = [len(part) for part in torch.arange(num_tokens).tensor_split(min(3, num_tokens) or 1)]
    lengths = [max(part, case.sizes["S"] - 5 * b) for b, part in enumerate(parts)]
    q_T2HD = torch.randn(num_tokens, 2, heads, head_dim, generator=generator)
    q_THD = q_T2HD.to(TORCH_DTYPES[case.dtype])[:, 0]
    cu_seqlens_q = torch.tensor([0, *parts]).cumsum(0).to(torch.int32)
    cache_PZ2KD, lengths_B, table_BM = random_cache(case, lengths, generator)
    args = (q_THD, cache_PZ2KD, cu_seqlens_q, lengths_B, table_BM)
    return args, random_options(case, generator)
