"""Mixture of experts after the router: gate-and-up, SwiGLU, down, weighted sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.ops.moe_gemm.experts import ExpertWeights


def moe_gemm(
    x_TD: torch.Tensor,
    ids_Tk: torch.Tensor,
    weights_Tk: torch.Tensor,
    experts: ExpertWeights,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
    impl: str = "auto",
) -> torch.Tensor:
    """y[t] = Σ_j w[t,j] · (down[e] · swiglu(gate_up[e] · x[t])) with e = ids[t,j].

    The activation is that of `kernels.ops.swiglu`: silu(g) · u unless `clamp`, `gain` or `shift`
    ask for more. Either map adds its bias where the experts have one.

    Shapes: x (T, D) with any row stride; ids (T, k) int32 in 0 ... E - 1; weights (T, k) float32;
    experts as `ExpertWeights` says. Returns y (T, D) in x's dtype.
    Numerics: float32 sums; the product of SwiGLU and each choice's row are rounded to x's dtype;
    the choices of a token are summed in float32 in a fixed order: the same bits every run. mxfp4
    and e4m3 weights are decoded exactly.
    Cost: weights of the experts that are hit once, x and y once, T·k rows of I and of D twice;
    6·T·k·D·I operations.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Gale et al. 2022, arXiv:2211.15841 (grouped, block-aligned experts); biases and gain as
    in gpt-oss, arXiv:2508.10925.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.moe_gemm.spec import SPEC
    from kernels.runtime import implementation

    check_shape(x_TD, "T D", {"D": experts.width}, name="x")
    num_tokens = x_TD.shape[0]
    check_shape(ids_Tk, "T k", {"T": num_tokens}, name="ids")
    k = ids_Tk.shape[1]
    check_shape(weights_Tk, "T k", {"T": num_tokens, "k": k}, name="weights")
    sizes = {"T": num_tokens, "E": experts.num_experts, "k": k}
    run = implementation(
        SPEC,
        x_TD.device,
        DTYPE_NAMES[x_TD.dtype],
        sizes=sizes | {"D": experts.width, "I": experts.inner},
        options={"weights": experts.kind},
        asked=impl,
    )
    return run(x_TD, ids_Tk, weights_Tk, experts, clamp=clamp, gain=gain, shift=shift)
