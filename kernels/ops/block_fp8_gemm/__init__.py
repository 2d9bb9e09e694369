"""Linear layer with e4m3 weights in square blocks, as DeepSeek's checkpoints store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def block_fp8_gemm(
    x_MK: torch.Tensor,
    x_scale_MG: torch.Tensor | None,
    weight_NK: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    block: int = 128,
    out_dtype: torch.dtype | None = None,
    impl: str = "auto",
) -> torch.Tensor:
    """y[m,n] = Σ_g sx[m,g] · Σ_{k in g} x[m,k] · w[n,k] · sw[n/block, k/block].

    Shapes: x (M, K) e4m3fn with scales (M, ceil(K/128)) float32, or bf16/fp16 with `x_scale`
    None and any row stride; weight (N, K) e4m3fn; weight_scale (ceil(N/block), ceil(K/block))
    float32, or ue8m0 as uint8 / float8_e8m0fnu; block 128 or 32. Returns y (M, N) in `out_dtype`
    (x's own dtype, or bf16 for e4m3 x).
    Numerics: products of a scale block accumulate on the matrix unit, are scaled in float32 and
    added in float32: a unit that keeps few bits (wgmma: about 14) does so over 128 terms at most.
    Decoded weights are exact in bf16, so a family without e4m3 products computes the same sums.
    Split K is summed in order: the same bits every run.
    Cost: x, weight and y once; 2·M·N·K operations.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2.
    """
    import torch

    from kernels.checks import check_dtype, check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.errors import ShapeError
    from kernels.ops.block_fp8_gemm.spec import SPEC
    from kernels.quantise import FP8_GROUP
    from kernels.runtime import implementation

    if block not in (32, 128):
        raise ShapeError(f"block is {block}; checkpoints have 128 or 32")
    check_shape(x_MK, "M K", {}, name="x")
    m, k = x_MK.shape
    check_shape(weight_NK, "N K", {"K": k}, name="weight")
    n = weight_NK.shape[0]
    check_dtype(weight_NK, (torch.float8_e4m3fn,), name="weight")
    sizes = {"A": -(-n // block), "B": -(-k // block)}
    check_shape(weight_scale, "A B", sizes, name="weight_scale")
    is_fp8 = x_MK.dtype == torch.float8_e4m3fn
    if is_fp8 != (x_scale_MG is not None):
        raise ShapeError(f"x is {x_MK.dtype}: e4m3fn x comes with scales, wider x without")
    if x_scale_MG is not None:
        check_shape(x_scale_MG, "M G", {"M": m, "G": -(-k // FP8_GROUP)}, name="x_scale")
    out = out_dtype or (torch.bfloat16 if is_fp8 else x_MK.dtype)
    options = {"block": f"{block}x{block}", "x": "fp8" if is_fp8 else "wide"}
    run = implementation(
        SPEC,
        x_MK.device,
        DTYPE_NAMES[out if is_fp8 else x_MK.dtype],
        sizes={"M": m, "N": n, "K": k},
        options=options,
        asked=impl,
    )
    return run(x_MK, x_scale_MG, weight_NK, weight_scale, block=block, out_dtype=out)
