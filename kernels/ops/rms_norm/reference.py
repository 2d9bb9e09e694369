"""RMSNorm in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.quantise import quantise_rows
from kernels.spec import Case


def rms_norm(
    x_TD: torch.Tensor,
    weight_D: torch.Tensor,
    residual_TD: torch.Tensor | None = None,
    *,
    eps: float,
    quant: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """See `kernels.ops.rms_norm.rms_norm`; computes in float32, or in float64 when given it."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    summed = None
    if residual_TD is not None:
        summed = (x_TD.to(wide) + residual_TD.to(wide)).to(x_TD.dtype)
        x_TD = summed
    x_wide = x_TD.to(wide)
    rms_T1 = torch.rsqrt(x_wide.square().mean(-1, keepdim=True) + eps)
    y_TD = x_wide * rms_T1 * weight_D.to(wide)
    if quant == "none":
        return y_TD.to(x_TD.dtype), summed, None
    values_TD, scale_T = quantise_rows(y_TD, quant)
    return values_TD, summed, scale_T


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case; x is a view with a stride, as it is after a fused product."""
    rows, width, dtype = case.sizes["T"], case.sizes["D"], TORCH_DTYPES[case.dtype]
    x_TD = torch.randn(rows, 2 * width, generator=generator).to(dtype)[:, :width]
    weight_D = (1 + 0.2 * torch.randn(width, generator=generator)).to(dtype)
    residual_TD = None
    if case.options.get("residual") == "yes":
        residual_TD = torch.randn(rows, width, generator=generator).to(dtype)
    options = {"eps": 1e-5, "quant": case.options.get("quant", "none")}
    return (x_TD, weight_D, residual_TD), options
