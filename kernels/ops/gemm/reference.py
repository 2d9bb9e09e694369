"""The matrix product as torch calls it, and the arguments of a case."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.spec import Case


def gemm(x_MK: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """y = x · weightᵀ in x's dtype: torch hands it to the vendor's library."""
    return torch.nn.functional.linear(x_MK, weight_NK)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normal x and weight, the weight scaled so that y has the variance of x."""
    m, n, k = case.sizes["M"], case.sizes["N"], case.sizes["K"]
    dtype = TORCH_DTYPES[case.dtype]
    x_MK = torch.randn(m, k, generator=generator).to(dtype)
    weight_NK = (torch.randn(n, k, generator=generator) / max(k, 1) ** 0.5).to(dtype)
    return (x_MK, weight_NK), {}
