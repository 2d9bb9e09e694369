"""Adaptive layer norm of a diffusion block: gated residual, norm, scale and shift in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.adaln_modulate.modulation import Modulation

if TYPE_CHECKING:
    import torch

__all__ = ["Modulation", "adaln_modulate"]


def adaln_modulate(
    x_TC: torch.Tensor,
    modulation: Modulation,
    branch_TC: torch.Tensor | None = None,
    *,
    norm: str = "layer",
    eps: float = 1e-6,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x' = x + gate · branch; y = norm(x') · (1 + scale) + shift, each where it is given.

    `norm` is "layer" (no weights: (x' - mean) / sqrt(var + eps)), "rms" or "none". A missing gate
    counts as 1, missing scale and shift as 0.

    Shapes: x, branch (T, C) with any row stride; scale, shift, gate (B, C), all of one B, views
    of one table allowed; `modulation.rows` chooses the table row of each token (MiniMax-H3:
    timestep · 3 + modality), without it token t uses row t // (T / B). Returns (y, x'): (T, C)
    each in x's dtype; x' is None without a branch, and y itself where nothing follows the
    residual.
    Numerics: x' is rounded to x's dtype once, as the residual stream is kept; norm and modulation
    in float32, rounded once; error ≤ 2× that of plain torch in the same dtype.
    Cost: x and branch are read once, y and x' written once.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Peebles & Xie 2022, arXiv:2212.09748, section 3.2 (adaLN-Zero).
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.adaln_modulate.modulation import check_modulation
    from kernels.ops.adaln_modulate.spec import SPEC
    from kernels.runtime import implementation

    check_shape(x_TC, "T C", {}, name="x")
    num_rows, width = x_TC.shape
    check_modulation(modulation, num_rows, width, norm)
    if branch_TC is not None:
        check_shape(branch_TC, "T C", {"T": num_rows, "C": width}, name="branch")
    options = {
        "norm": norm,
        "residual": "none" if branch_TC is None else "yes",
        "table": "none" if modulation.rows is None else "yes",
    }
    sizes = {"T": num_rows, "C": width}
    run = implementation(
        SPEC, x_TC.device, DTYPE_NAMES[x_TC.dtype], sizes=sizes, options=options, asked=impl
    )
    return run(x_TC, modulation, branch_TC, norm=norm, eps=eps)
