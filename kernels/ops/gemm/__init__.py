"""The plain matrix product of a linear layer, which the vendor's library computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def gemm(x_MK: torch.Tensor, weight_NK: torch.Tensor, *, impl: str = "auto") -> torch.Tensor:
    """y = x · weightᵀ.

    Shapes: x (M, K), weight (N, K); returns y (M, N) in x's dtype.
    Numerics: the vendor's library: cuBLAS, hipBLASLt, oneDNN, or what the vendor ships.
    Cost: x, weight and y once.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.gemm.spec import SPEC
    from kernels.runtime import implementation

    check_shape(x_MK, "M K", {}, name="x")
    rows, depth = x_MK.shape
    check_shape(weight_NK, "N K", {"K": depth}, name="weight")
    sizes = {"M": rows, "N": weight_NK.shape[0], "K": depth}
    run = implementation(
        SPEC, x_MK.device, DTYPE_NAMES[x_MK.dtype], sizes=sizes, options={}, asked=impl
    )
    return run(x_MK, weight_NK)
