"""Adaptive layer norm in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.adaln_modulate.modulation import Modulation
from kernels.spec import Case


def adaln_modulate(
    x_TC: torch.Tensor,
    modulation: Modulation,
    branch_TC: torch.Tensor | None = None,
    *,
    norm: str,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.adaln_modulate.adaln_modulate`; float32, or float64 when given it."""
    dtype, wide = x_TC.dtype, torch.promote_types(x_TC.dtype, torch.float32)
    row_T = modulation.row_of_token(x_TC.shape[0], x_TC.device)
    summed = None
    if branch_TC is not None:
        added_TC = branch_TC.to(wide)
        if modulation.gate is not None:
            added_TC = added_TC * modulation.gate.to(wide)[row_T]
        summed = x_TC = (x_TC.to(wide) + added_TC).to(dtype)
    y_TC = _normed(x_TC.to(wide), norm, eps)
    if modulation.scale is not None and modulation.shift is not None:
        y_TC = y_TC * (1 + modulation.scale.to(wide)[row_T])
        y_TC = y_TC + modulation.shift.to(wide)[row_T]
    return y_TC.to(dtype), summed


def _normed(x_TC: torch.Tensor, norm: str, eps: float) -> torch.Tensor:
    if norm == "none":
        return x_TC
    if norm == "layer":
        x_TC = x_TC - x_TC.mean(-1, keepdim=True)
    return x_TC * torch.rsqrt(x_TC.square().mean(-1, keepdim=True) + eps)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case; scale, shift and gate are views of one table, as in models.

    With norm "none" and a residual nothing follows the residual, as at the end of a block.
    """
    num_rows, width, dtype = case.sizes["T"], case.sizes["C"], TORCH_DTYPES[case.dtype]
    has_table = case.options.get("table") == "yes"
    has_branch = case.options.get("residual") == "yes"
    norm = case.options.get("norm", "layer")
    num_tables = 6 if has_table else (2 if num_rows % 2 == 0 else 1)
    table = (0.3 * torch.randn(num_tables, 3, width, generator=generator)).to(dtype)
    x_TC = torch.randn(num_rows, width + 4, generator=generator).to(dtype)[:, :width]
    branch_TC = torch.randn(num_rows, width, generator=generator).to(dtype)
    is_last = norm == "none" and has_branch
    modulation = Modulation(
        scale=None if is_last else table[:, 0],
        shift=None if is_last else table[:, 1],
        gate=table[:, 2] if has_branch else None,
        rows=torch.randint(0, 6, (num_rows,), generator=generator) if has_table else None,
    )
    options = {"norm": norm, "eps": 1e-6}
    return (x_TC, modulation, branch_TC if has_branch else None), options
