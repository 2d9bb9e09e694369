"""The product of activations with a matrix quantised by groups, computed in its packed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.ops.packed_gemm.quantised import QuantisedMatrix


def packed_gemm(
    x_MK: torch.Tensor,
    matrix: QuantisedMatrix,
    bias_N: torch.Tensor | None = None,
    *,
    impl: str = "auto",
) -> torch.Tensor:
    """y = x Wᵀ + b with W = scale · quant + minimum by row and group of columns.

    Shapes: x (M, K) float32; matrix (N, K); bias (N); returns y (M, N) float32.
    Numerics: the native form rounds x to integers by row and group, the group's largest value
    being 127 for weights of 4 bits and 32767 for 8 bits; sums within a group are exact, groups are
    added in float32 in their order. |error| ≤ Σ_groups step/2 · Σ|w| with step = max|x| / 127 (or
    32767), and float32 rounding. A row's result depends on no other row and no thread count.
    Cost: the packed matrix once (5 bits a weight for 4 bits with minima), x and y once.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: ggml's block formats; Dettmers et al. 2022, arXiv:2208.07339, on rounding by vector.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.packed_gemm.spec import SPEC
    from kernels.runtime import implementation

    num_rows, num_columns = matrix.quants_NK.shape
    check_shape(x_MK, "M K", {"K": num_columns}, name="x")
    sizes = {"M": x_MK.shape[0], "N": num_rows, "K": num_columns}
    options = {"bits": str(matrix.bits), "group": str(matrix.group)}
    dtype = DTYPE_NAMES[x_MK.dtype]
    run = implementation(SPEC, x_MK.device, dtype, sizes=sizes, options=options, asked=impl)
    return run(x_MK, matrix, bias_N)
