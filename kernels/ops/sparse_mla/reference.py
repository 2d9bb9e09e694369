"""Attention to rows named by an index, in plain torch: the oracle of the sparse attentions."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.sparse_mla.rows import Rows, Selection, gather, quantise
from kernels.spec import Case

# T tokens, H heads, D width, L latent, R rotated tail, K rows of an index, C all rows of a token.

# Bytes of gathered rows at a time: a long prompt is cut into runs of tokens.
GATHERED_BYTES = 1 << 26


def attend(
    q_THD: torch.Tensor,
    sources: tuple[Selection, ...],
    *,
    scale: float,
    num_values: int,
    sink_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One softmax over the rows of all sources; values are their first `num_values` columns.

    Rows and weights are rounded to q's dtype; scores and softmax are float32, or q's when wider.
    """
    num_tokens, num_heads, width = q_THD.shape
    num_rows = sum(source.index_TK.shape[1] for source in sources)
    step = max(1, GATHERED_BYTES // max(1, num_rows * width * 8))
    parts = [
        _attend(q, sources, slice(start, start + step), scale, num_values, sink_H)
        for start in range(0, num_tokens, step)
        for q in (q_THD[start : start + step],)
    ]
    if not parts:
        wide = torch.promote_types(q_THD.dtype, torch.float32)
        return q_THD.new_empty(0, num_heads, num_values), q_THD.new_empty(0, num_heads, dtype=wide)
    return torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts])


def _attend(
    q_THD: torch.Tensor,
    sources: tuple[Selection, ...],
    tokens: slice,
    scale: float,
    num_values: int,
    sink_H: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(q_THD.dtype, torch.float32)
    gathered = [gather(s.rows, s.index_TK[tokens], q_THD.dtype) for s in sources]
    rows_TCD = torch.cat(gathered, dim=1)
    is_row_TC = torch.cat([s.index_TK[tokens] >= 0 for s in sources], dim=1)
    scores_THC = q_THD.to(wide) @ rows_TCD.to(wide).transpose(1, 2) * scale
    scores_THC = scores_THC.masked_fill(~is_row_TC[:, None, :], -torch.inf)
    logits = scores_THC
    if sink_H is not None:
        sink_TH1 = sink_H.to(wide)[None, :, None].expand(len(q_THD), -1, 1)
        logits = torch.cat([scores_THC, sink_TH1], dim=-1)
    if logits.shape[-1] == 0:
        logits = scores_THC.new_full((*q_THD.shape[:2], 1), -torch.inf)
    lse_TH = logits.logsumexp(-1)
    weights_THC = torch.exp(scores_THC - lse_TH[..., None].clamp(min=-1e38))
    return weights_THC.to(q_THD.dtype) @ rows_TCD[..., :num_values], lse_TH


def sparse_mla(
    q_THD: torch.Tensor, rows: Rows, index_TK: torch.Tensor, *, scale: float, phase: str = "prefill"
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.sparse_mla.sparse_mla`."""
    del phase
    chosen = Selection(rows=rows, index_TK=index_TK)
    return attend(q_THD, (chosen,), scale=scale, num_values=rows.num_values)


def random_index(
    num_tokens: int, num_rows: int, num_pool: int, generator: torch.Generator
) -> torch.Tensor:
    """Distinct rows of a pool for each token, about one in five -1, the first never."""
    order = torch.rand(num_tokens, num_pool, generator=generator).argsort(-1)[:, :num_rows]
    is_none = torch.rand(num_tokens, num_rows, generator=generator) < 0.2
    is_none[:, :1] = False
    return order.masked_fill(is_none, -1).int()


def random_rows(
    num_rows: int, width: int, num_tail: int, dtype: torch.dtype, kind: str,
    generator: torch.Generator,
) -> Rows:  # fmt: skip
    """A pool of rows; unquantised ones are views of one wide buffer."""
    x_PD = torch.randn(num_rows, width + 16, generator=generator).to(dtype)[:, :width]
    num_values = width - num_tail
    if kind == "fp8":
        group = next(g for g in (64, 32, 16) if num_values % g == 0)
        return quantise(x_PD, num_tail=num_tail, group=group, is_e8m0=num_rows % 2 == 0)
    tail_PR = x_PD[:, num_values:] if num_tail else None
    return Rows(values_PN=x_PD[:, :num_values], tail_PR=tail_PR)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case; queries are a view with a stride."""
    sizes, dtype = case.sizes, TORCH_DTYPES[case.dtype]
    width, num_pool = sizes["L"] + sizes["R"], 2 * sizes["K"] + 3
    q_THD = torch.randn(sizes["T"], sizes["H"], 2 * width, generator=generator)
    q_THD = q_THD.to(dtype)[..., :width]
    kind = case.options.get("cache", "bf16")
    rows = random_rows(num_pool, width, sizes["R"], dtype, kind, generator)
    index_TK = random_index(sizes["T"], sizes["K"], num_pool, generator)
    options = {"scale": width**-0.5, "phase": case.options.get("phase", "prefill")}
    return (q_THD, rows, index_TK), options
