"""RMSNorm on a CPU: torch's fused norm, one pass for the sum and one for the norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention


def rms_norm(
    x_TD: torch.Tensor,
    weight_D: torch.Tensor,
    residual_TD: torch.Tensor | None = None,
    *,
    eps: float,
    quant: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """See `kernels.ops.rms_norm.rms_norm`; `quant` must be "none" here."""
    assert quant == "none"
    summed = None
    if residual_TD is not None:
        summed = x_TD + residual_TD
        x_TD = summed
    return F.rms_norm(x_TD, weight_D.shape, weight_D, eps), summed, None
