"""The ops as model code writes them with torch's own fused functions, in the case's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from benchmarks.peers.absence import require

_Options = dict[str, Any]


def rms_norm(args: tuple[Any, ...], options: _Options) -> Callable[[], torch.Tensor]:
    """`F.rms_norm`, after a sum where there is a residual."""
    require(options["quant"] == "none", "torch does not quantise in its norm")
    x_TD, weight_D, residual_TD = args
    eps = options["eps"]
    if residual_TD is None:
        return lambda: F.rms_norm(x_TD, weight_D.shape, weight_D, eps)
    return lambda: F.rms_norm(x_TD + residual_TD, weight_D.shape, weight_D, eps)


def swiglu(args: tuple[Any, ...], options: _Options) -> Callable[[], torch.Tensor]:
    """`F.silu(gate) * up`, as every eager model has it."""
    require(options["quant"] == "none", "torch does not quantise in its activation")
    require("gain" not in options, "F.silu has no gain")
    x_T2I, clamp = args[0], options["clamp"]

    def call() -> torch.Tensor:
        gate_TI, up_TI = x_T2I.chunk(2, dim=-1)
        if clamp is not None:
            gate_TI, up_TI = gate_TI.clamp(max=clamp), up_TI.clamp(-clamp, clamp)
        return F.silu(gate_TI) * up_TI

    return call


def full_attention(args: tuple[Any, ...], options: _Options) -> Callable[[], torch.Tensor]:
    """`scaled_dot_product_attention`, without the log-sum-exp."""
    scale = options["scale"]

    def call() -> torch.Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in args)
        return F.scaled_dot_product_attention(q, k, v, scale=scale)[0].transpose(0, 1)

    return call


def adaln_modulate(args: tuple[Any, ...], options: _Options) -> Callable[[], torch.Tensor]:
    """`F.layer_norm` without affine, then scale and shift by broadcasting, as diffusers does."""
    x_TC, modulation, branch_TC = args
    require(options["norm"] == "layer", "only layer norm is written so")
    require(modulation.rows is None, "a row for each token is no broadcast")
    require(modulation.scale is not None, "nothing to modulate")
    num_rows, width = modulation.scale.shape
    require(x_TC.shape[0] % num_rows == 0, "tokens do not divide into the rows")
    x_RTC = x_TC.reshape(num_rows, -1, width)
    scale_R1C, shift_R1C = modulation.scale[:, None], modulation.shift[:, None]
    branch_RTC = gate_R1C = None
    if branch_TC is not None:
        branch_RTC, gate_R1C = branch_TC.reshape(x_RTC.shape), modulation.gate[:, None]

    def call() -> torch.Tensor:
        summed = x_RTC if branch_RTC is None else x_RTC + branch_RTC * gate_R1C
        return F.layer_norm(summed, (width,), eps=options["eps"]) * (1 + scale_R1C) + shift_R1C

    return call
