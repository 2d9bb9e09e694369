"""Shared rows through the core of the sparse attentions: two pools, and a sink."""

from __future__ import annotations

import torch

from kernels.ops.sparse_mla.rows import Selection
from kernels.ops.sparse_mla.triton_kernel import attend


def sparse_shared_kv(
    q_THD: torch.Tensor,
    window: Selection,
    chosen: Selection,
    sink_H: torch.Tensor | None = None,
    *,
    scale: float,
    phase: str = "prefill",
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.sparse_shared_kv.sparse_shared_kv`."""
    return attend(
        q_THD,
        chosen.rows,
        chosen.index_TK,
        scale=scale,
        phase=phase,
        is_tail_value=True,
        window=window,
        sink_H=sink_H,
    )
