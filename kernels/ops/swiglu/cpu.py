"""SwiGLU on a CPU: torch's two vectorised passes, the product in place of the activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention


def swiglu(
    x_T2I: torch.Tensor, *, clamp: float | None = None, quant: str = "none"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.swiglu.swiglu`; `quant` must be "none" here."""
    assert quant == "none"
    gate_TI, up_TI = x_T2I.chunk(2, dim=-1)
    if clamp is None:
        return F.silu(gate_TI).mul_(up_TI), None
    activated_TI = F.silu(gate_TI.clamp(max=clamp), inplace=True)
    return activated_TI.mul_(up_TI.clamp(-clamp, clamp)), None
