"""SwiGLU on a CPU: torch's two vectorised passes, the product in place of the activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention


def swiglu(
    x_T2I: torch.Tensor,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
    quant: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.swiglu.swiglu`; `quant` must be "none" here."""
    assert quant == "none"
    gate_TI, up_TI = x_T2I.chunk(2, dim=-1)
    if (gain, shift) != (1.0, 0.0):
        return _with_gain(gate_TI.float(), up_TI.float(), clamp, gain, shift).to(x_T2I.dtype), None
    if clamp is None:
        return F.silu(gate_TI).mul_(up_TI), None
    activated_TI = F.silu(gate_TI.clamp(max=clamp), inplace=True)
    return activated_TI.mul_(up_TI.clamp(-clamp, clamp)), None


def _with_gain(
    gate_TI: torch.Tensor, up_TI: torch.Tensor, clamp: float | None, gain: float, shift: float
) -> torch.Tensor:
    """In float32: no op of torch has a gain, so more passes would round more often."""
    if clamp is not None:
        gate_TI, up_TI = gate_TI.clamp(max=clamp), up_TI.clamp(-clamp, clamp)
    return (gain * gate_TI).sigmoid_().mul_(gate_TI).mul_(up_TI + shift)
