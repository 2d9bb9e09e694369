"""FlashInfer's pointwise forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers.absence import require


def rms_norm(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """`flashinfer.norm.rmsnorm`; its fused residual form writes over its inputs."""
    from flashinfer.norm import rmsnorm

    x_TD, weight_D, residual_TD = args
    require(options["quant"] == "none", "it does not quantise here")
    require(residual_TD is None, "its residual form works in place")
    require(x_TD.dtype != torch.float32, "16-bit floats alone")
    x_TD, eps = x_TD.contiguous(), options["eps"]
    return lambda: rmsnorm(x_TD, weight_D, eps)


def swiglu(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """`flashinfer.activation.silu_and_mul` of gate and up side by side."""
    from flashinfer.activation import silu_and_mul

    x_T2I = args[0].contiguous()
    require(options["quant"] == "none", "it does not quantise here")
    require("gain" not in options, "it has no gain")
    require(options["clamp"] is None, "it does not clamp")
    require(x_T2I.dtype != torch.float32, "16-bit floats alone")
    return lambda: silu_and_mul(x_T2I)
