"""SwiGLU of a fused gate-and-up product, with clamping and quantisation of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def swiglu(
    x_T2I: torch.Tensor,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
    quant: str = "none",
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """y = g · sigmoid(gain · g) · (u + shift), x = (g | u): silu(g) · u unless more is asked for.

    With `clamp` c, min(g, c) and clamp(u, -c, c) take the places of g and u.

    Shapes: x (T, 2I), the gate first, with any row stride. Returns (y, scales): y (T, I) in x's
    dtype, or e4m3 / int8 with `quant`; scales (T, ceil(I/128)) for "fp8", (T, 1) for "int8",
    else None, float32.
    Numerics: float32, rounded once; error ≤ 2× that of plain torch in the same dtype.
    Cost: x is read once, y written once.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Shazeer 2020, arXiv:2002.05202, section 2; the clamp as in DeepSeek-V4's experts,
    gain and shift as in gpt-oss's.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.errors import ShapeError
    from kernels.ops.swiglu.spec import SPEC
    from kernels.runtime import implementation

    check_shape(x_T2I, "T 2I", {}, name="x")
    rows, doubled = x_T2I.shape
    if doubled % 2:
        raise ShapeError(f"x has {doubled} columns; gate and up need an even number")
    has_gain = (gain, shift) != (1.0, 0.0)
    options = {
        "clamp": "none" if clamp is None else "yes",
        "gain": "yes" if has_gain else "none",
        "quant": quant,
    }
    sizes = {"T": rows, "I": doubled // 2}
    run = implementation(
        SPEC, x_T2I.device, DTYPE_NAMES[x_T2I.dtype], sizes=sizes, options=options, asked=impl
    )
    return run(x_T2I, clamp=clamp, gain=gain, shift=shift, quant=quant)
