"""Experts in plain torch, one after the other: the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.block_fp8_gemm.formats.reference import pack_mxfp4, quantise_blocks
from kernels.ops.moe_gemm.experts import ExpertWeights
from kernels.ops.swiglu.reference import swiglu
from kernels.spec import Case

# T tokens, k choices, E experts, D model width, I inner width.


def moe_gemm(
    x_TD: torch.Tensor,
    ids_Tk: torch.Tensor,
    weights_Tk: torch.Tensor,
    experts: ExpertWeights,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
) -> torch.Tensor:
    """See `kernels.ops.moe_gemm.moe_gemm`; computes in float32, or in float64 when given it."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    num_tokens, k = ids_Tk.shape
    rows_TkD = torch.zeros(num_tokens, k, experts.width, dtype=wide, device=x_TD.device)
    for index in ids_Tk.unique().tolist():
        token, slot = torch.where(ids_Tk == index)
        gate_up, down = experts.expert(index, wide)
        gate_up_P2I = _plus(x_TD[token].to(wide) @ gate_up.mT, experts.gate_up_bias, index)
        hidden, _ = swiglu(gate_up_P2I, clamp=clamp, gain=gain, shift=shift)
        hidden_PI = hidden.to(x_TD.dtype).to(wide)
        rows_TkD[token, slot] = _plus(hidden_PI @ down.mT, experts.down_bias, index)
    return (rows_TkD * weights_Tk.to(wide)[..., None]).sum(1).to(x_TD.dtype)


def _plus(y_PN: torch.Tensor, bias_EN: torch.Tensor | None, index: int) -> torch.Tensor:
    return y_PN if bias_EN is None else y_PN + bias_EN[index].to(y_PN.dtype)


def random_experts(
    case: Case, generator: torch.Generator, *, has_e8m0: bool = False
) -> ExpertWeights:
    """Normal weights that keep the variance of x, in the case's format."""
    e, d, i = (case.sizes[s] for s in "EDI")
    block = int(case.options.get("block", "128x128").partition("x")[0])
    gate_up = torch.randn(e, 2 * i, d, generator=generator) / d**0.5
    down = torch.randn(e, d, i, generator=generator) / i**0.5
    kind = case.options.get("weights", "bf16")
    if kind == "bf16":
        dtype = TORCH_DTYPES[case.dtype]
        return ExpertWeights(gate_up=gate_up.to(dtype), down=down.to(dtype))
    if kind == "mxfp4":
        (gate_up, gate_up_scale), (down, down_scale) = pack_mxfp4(gate_up), pack_mxfp4(down)
    else:
        gate_up, gate_up_scale = quantise_blocks(gate_up, block, has_e8m0=has_e8m0)
        down, down_scale = quantise_blocks(down, block, has_e8m0=has_e8m0)
    return ExpertWeights(
        gate_up=gate_up,
        down=down,
        gate_up_scale=gate_up_scale,
        down_scale=down_scale,
        block=block,
    )


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments; distinct experts of a token, some experts without any."""
    t, e, k, d = (case.sizes[s] for s in "TEkD")
    x_TD = torch.randn(t, 2 * d, generator=generator).to(TORCH_DTYPES[case.dtype])[:, :d]
    ids_Tk = torch.rand(t, e, generator=generator).argsort(-1)[:, :k].int()
    weights_Tk = torch.softmax(torch.randn(t, k, generator=generator), -1)
    experts = random_experts(case, generator, has_e8m0=case.options.get("scale") == "e8m0")
    if case.options.get("bias") == "yes":
        experts = replace(
            experts,
            gate_up_bias=torch.randn(e, 2 * experts.inner, generator=generator).to(x_TD.dtype),
            down_bias=torch.randn(e, d, generator=generator).to(x_TD.dtype),
        )
    clamp = 1.0 if case.options.get("clamp") == "yes" else None
    options: dict[str, Any] = {"clamp": clamp}
    if case.options.get("gain") == "yes":
        options |= {"gain": 1.702, "shift": 1.0}
    return (x_TD, ids_Tk, weights_Tk, experts), options
