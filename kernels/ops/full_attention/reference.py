"""Attention in plain torch, as eager models compute it: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.spec import Case

# S queries, N keys, H query heads, K key/value heads, D head dim.


def attend(
    q_SHD: torch.Tensor,
    k_NKD: torch.Tensor,
    v_NKD: torch.Tensor,
    *,
    scale: float,
    is_seen_SN: torch.Tensor | None = None,
    sink_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (S, H, D) and log-sum-exp (S, H); products in q's dtype, softmax in float32 or wider.

    A sink adds exp(sink) to the denominator, and so to the log-sum-exp.
    """
    wide = torch.promote_types(q_SHD.dtype, torch.float32)
    group = q_SHD.shape[1] // max(k_NKD.shape[1], 1)
    k_HDN = k_NKD.repeat_interleave(group, 1).permute(1, 2, 0)
    v_HND = v_NKD.repeat_interleave(group, 1).transpose(0, 1)
    scores_HSN = (q_SHD.transpose(0, 1) @ k_HDN).to(wide) * scale
    if is_seen_SN is not None:
        scores_HSN = scores_HSN.masked_fill(~is_seen_SN, -torch.inf)
    lse_HS = scores_HSN.logsumexp(-1)
    if sink_H is not None:
        lse_HS = torch.logaddexp(lse_HS, sink_H.to(wide)[:, None])
    # A query that sees nothing has weights of zero, not NaN.
    weights_HSN = (scores_HSN - lse_HS.clamp(min=-1e38)[..., None]).exp().to(v_NKD.dtype)
    return (weights_HSN @ v_HND).transpose(0, 1), lse_HS.transpose(0, 1)


def full_attention(
    q_SHD: torch.Tensor, k_NHD: torch.Tensor, v_NHD: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.full_attention.full_attention`."""
    return attend(q_SHD, k_NHD, v_NHD, scale=scale)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case; keys and values are views of a fused product."""
    heads, head_dim = case.sizes["H"], case.sizes["D"]
    dtype = TORCH_DTYPES[case.dtype]

    def rows(count: int, parts: int) -> torch.Tensor:
        return torch.randn(count, parts, heads, head_dim, generator=generator).to(dtype)

    q_SHD = rows(case.sizes["S"], 1)[:, 0]
    k_NHD, v_NHD = rows(case.sizes["N"], 2).unbind(1)
    return (q_SHD, k_NHD, v_NHD), {"scale": head_dim**-0.5}
