"""Liger-Kernel's forms: Triton kernels made for training, run forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers.absence import require


def rms_norm(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """LigerRMSNorm in Llama's casting mode; no residual, no quantisation."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    x_TD, weight_D, residual_TD = args
    require(options["quant"] == "none", "it does not quantise")
    require(residual_TD is None, "its norm takes no residual")
    x_TD, eps = x_TD.contiguous(), options["eps"]
    return lambda: LigerRMSNormFunction.apply(x_TD, weight_D, eps, 0.0, "llama", False)


def swiglu(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """LigerSiLUMul on two separate halves."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    require(options["quant"] == "none", "it does not quantise")
    require("gain" not in options, "it has no gain")
    require(options["clamp"] is None, "it does not clamp")
    gate_TI, up_TI = (half.contiguous() for half in args[0].chunk(2, dim=-1))
    return lambda: LigerSiLUMulFunction.apply(gate_TI, up_TI)
