"""SwiGLU in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.quantise import quantise_rows
from kernels.spec import Case


def swiglu(
    x_T2I: torch.Tensor,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
    quant: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.swiglu.swiglu`; computes in float32, or in float64 when given it."""
    wide = torch.promote_types(x_T2I.dtype, torch.float32)
    gate_TI, up_TI = x_T2I.to(wide).chunk(2, dim=-1)
    if clamp is not None:
        gate_TI, up_TI = gate_TI.clamp(max=clamp), up_TI.clamp(-clamp, clamp)
    y_TI = gate_TI * torch.sigmoid(gain * gate_TI) * (up_TI + shift)
    if quant == "none":
        return y_TI.to(x_T2I.dtype), None
    return quantise_rows(y_TI, quant)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normal x, wide enough that a clamp at 1 acts on many values; a view with a stride."""
    rows, width, dtype = case.sizes["T"], case.sizes["I"], TORCH_DTYPES[case.dtype]
    x_T2I = (1.5 * torch.randn(rows, 2 * width + 8, generator=generator)).to(dtype)
    clamp = 1.0 if case.options.get("clamp") == "yes" else None
    options: dict[str, Any] = {"clamp": clamp, "quant": case.options.get("quant", "none")}
    if case.options.get("gain") == "yes":
        options |= {"gain": 1.702, "shift": 1.0}
    return (x_T2I[:, : 2 * width],), options
