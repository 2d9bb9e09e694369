"""Sums in a fixed order through the native kernels: float32 inside, one rounding, one pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from kernels.native.library import library

# `Kind` of exchange.h by dtype.
FLOAT_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def add_in_order(
    parts: Sequence[torch.Tensor], out_N: torch.Tensor, copy_N: torch.Tensor | None = None
) -> None:
    """out = parts[0] + parts[1] + ... in this order, and the same to `copy`.

    Shapes: all (N,), contiguous, of one dtype of `FLOAT_KINDS`; results may be parts.
    Numerics: float32 inside, rounded once to nearest even.
    """
    library().add_in_order(
        FLOAT_KINDS[out_N.dtype],
        addresses_of(parts),
        len(parts),
        out_N.numel(),
        out_N.data_ptr(),
        None if copy_N is None else copy_N.data_ptr(),
    )


def addresses_of(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of where tensors begin."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
