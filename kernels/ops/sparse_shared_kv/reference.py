"""Attention to a window and chosen rows in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.sparse_mla.reference import attend, random_index, random_rows
from kernels.ops.sparse_mla.rows import Selection
from kernels.spec import Case

# Columns of a row that stay in the activations' dtype where the others are e4m3: one in eight.
TAIL_SHARE = 8


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
    del phase
    width = chosen.rows.width
    return attend(q_THD, (window, chosen), scale=scale, num_values=width, sink_H=sink_H)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case; queries are a view with a stride."""
    sizes, dtype = case.sizes, TORCH_DTYPES[case.dtype]
    num_tokens, heads, width = sizes["T"], sizes["H"], sizes["D"]
    kind = case.options.get("rows", "bf16")
    tail = width // TAIL_SHARE if kind == "fp8" else 0
    q_THD = torch.randn(num_tokens, heads, 2 * width, generator=generator).to(dtype)[..., :width]
    window_size, num_chosen = sizes["W"] + 2, sizes["K"] + 3
    window = random_rows(window_size, width, tail, dtype, kind, generator)
    rows = random_rows(num_chosen, width, tail, dtype, kind, generator)
    window_TW = random_index(num_tokens, sizes["W"], window_size, generator)
    index_TK = random_index(num_tokens, sizes["K"], num_chosen, generator)
    sink_H = None
    if case.options.get("sink") == "yes":
        sink_H = torch.randn(heads, generator=generator)
    options = {"scale": width**-0.5, "phase": case.options.get("phase", "prefill")}
    seen = Selection(rows=window, index_TK=window_TW), Selection(rows=rows, index_TK=index_TK)
    return (q_THD, *seen, sink_H), options
