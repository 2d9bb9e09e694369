"""RMSNorm with what usually surrounds it: residual addition before, quantisation after."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def rms_norm(
    x_TD: torch.Tensor,
    weight_D: torch.Tensor,
    residual_TD: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    quant: str = "none",
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """y = z / sqrt(mean(z²) + eps) · weight with z = x + residual (z = x without one).

    Shapes: x, residual (T, D) with any row stride; weight (D). Returns (y, z, scales): y (T, D)
    in x's dtype, or e4m3 / int8 with `quant`; z (T, D) or None without a residual; scales
    (T, ceil(D/128)) for "fp8", (T, 1) for "int8", else None, float32.
    Numerics: statistics in float32; error ≤ 2× that of plain torch in the same dtype.
    Cost: x and residual are read once, y and z written once.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467, equation 4.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.rms_norm.spec import SPEC
    from kernels.runtime import implementation

    check_shape(x_TD, "T D", {}, name="x")
    rows, width = x_TD.shape
    check_shape(weight_D, "D", {"D": width}, name="weight")
    options = {"quant": quant}
    if residual_TD is not None:
        check_shape(residual_TD, "T D", {"T": rows, "D": width}, name="residual")
        options["residual"] = "yes"
    sizes = {"T": rows, "D": width}
    run = implementation(
        SPEC, x_TD.device, DTYPE_NAMES[x_TD.dtype], sizes=sizes, options=options, asked=impl
    )
    return run(x_TD, weight_D, residual_TD, eps=eps, quant=quant)
