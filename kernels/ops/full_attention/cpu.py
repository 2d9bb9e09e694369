"""Attention on a CPU: torch's flash kernel, which keeps the log-sum-exp it computes anyway."""

from __future__ import annotations

import torch


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of (batch, heads, rows, head dim); strides of 0 copy nothing."""
    return torch._scaled_dot_product_flash_attention_for_cpu(  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        q, k, v, is_causal=is_causal, attn_mask=mask, scale=scale
    )


def full_attention(
    q_SHD: torch.Tensor, k_NHD: torch.Tensor, v_NHD: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.full_attention.full_attention`."""
    if q_SHD.numel() == 0 or k_NHD.numel() == 0:
        nothing = torch.full(q_SHD.shape[:2], -torch.inf, dtype=torch.float32)
        return torch.zeros_like(q_SHD), nothing
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_SHD, k_NHD, v_NHD))
    o_1HSD, lse_1HS = flash(q, k, v, scale=scale)
    return o_1HSD[0].transpose(0, 1), lse_1HS[0].transpose(0, 1)
