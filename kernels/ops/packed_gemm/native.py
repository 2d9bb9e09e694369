"""The product with a packed matrix through the native kernels."""

from __future__ import annotations

import ctypes

import torch

from kernels.native.library import Library, Norm, Pool, library, pool
from kernels.ops.packed_gemm.quantised import PackedMatrix, QuantisedMatrix

# M rows, K inputs, N outputs.

_NO_NORM = Norm(None, 0.0)
_NO_NORM_ADDRESS = ctypes.addressof(_NO_NORM)


def multiply(
    x_MK: torch.Tensor,
    matrix: PackedMatrix,
    threads: Pool,
    native: Library | None = None,
    *,
    norm_K: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """y = x Wᵀ + b in float32; with a norm, of x / sqrt(mean(x²) + eps) · norm in place of x.

    Shapes: x (M, K); norm (K,); result (M, N). `native` is the build that packed the
    matrix, that of the machine unless given.
    """
    x_MK = x_MK.float().contiguous()
    norm_K = None if norm_K is None else norm_K.float().contiguous()
    norm = None if norm_K is None else Norm(norm_K.data_ptr(), eps)
    y_MN = torch.empty(x_MK.shape[0], matrix.num_rows)
    (native or library()).product(
        threads.handle,
        matrix.address,
        _NO_NORM_ADDRESS if norm is None else ctypes.addressof(norm),
        x_MK.data_ptr(),
        x_MK.shape[0],
        y_MN.data_ptr(),
    )
    return y_MN


def packed_gemm(
    x_MK: torch.Tensor,
    matrix: QuantisedMatrix,
    bias_N: torch.Tensor | None = None,
    *,
    quant: str = "groups",
) -> torch.Tensor:
    """See `kernels.ops.packed_gemm.packed_gemm`; packs first, which a model does once."""
    assert quant == "groups"
    threads = pool(torch.get_num_threads())
    return multiply(x_MK, PackedMatrix(matrix, bias_N, threads), threads)
