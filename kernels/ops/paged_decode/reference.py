"""Attention of one new token a sequence in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.paged_prefill.reference import paged_prefill, random_cache, random_options
from kernels.spec import Case


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
    """See `kernels.ops.paged_decode.paged_decode`: a prefill of one token a sequence."""
    one_each = torch.arange(q_BHD.shape[0] + 1, dtype=torch.int32)
    return paged_prefill(
        q_BHD, cache_PZ2KD, one_each, lengths_B, table_BM, scale=scale, window=window, sink_H=sink_H
    )


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case: lengths from S downwards; q is a view with a stride."""
    num_rows, heads, head_dim = (case.sizes[name] for name in ("B", "H", "D"))
    lengths = [max(1, case.sizes["S"] - 11 * b) for b in range(num_rows)]
    q_B2HD = torch.randn(num_rows, 2, heads, head_dim, generator=generator)
    q_BHD = q_B2HD.to(TORCH_DTYPES[case.dtype])[:, 0]
    cache_PZ2KD, lengths_B, table_BM = random_cache(case, lengths or [1], generator)
    lengths_B, table_BM = lengths_B[:num_rows], table_BM[:num_rows]
    return (q_BHD, cache_PZ2KD, lengths_B, table_BM), random_options(case, generator)
