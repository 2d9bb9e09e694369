"""Experts on a CPU: tokens sorted once, two library products an expert, sums in float32."""

from __future__ import annotations

import torch

from kernels.ops.moe_gemm.experts import ExpertWeights
from kernels.ops.swiglu.cpu import swiglu

# T tokens, k choices, P pairs in the order of their experts, D model width.


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
    """See `kernels.ops.moe_gemm.moe_gemm`; weights in x's dtype, choices summed by expert id."""
    flat = ids_Tk.reshape(-1)
    order_P = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts.num_experts).tolist()
    token_P = order_P // ids_Tk.shape[1]
    rows_PD = x_TD.index_select(0, token_P)
    route_P1 = weights_Tk.reshape(-1, 1).float().index_select(0, order_P)
    y_TD = torch.zeros(x_TD.shape, dtype=torch.float32)
    start = 0
    for index, count in enumerate(counts):
        if count == 0:
            continue
        end = start + count
        gate_up = _product(rows_PD[start:end], experts.gate_up, experts.gate_up_bias, index)
        hidden, _ = swiglu(gate_up, clamp=clamp, gain=gain, shift=shift)
        result = _product(hidden, experts.down, experts.down_bias, index) * route_P1[start:end]
        y_TD.index_add_(0, token_P[start:end], result)
        start = end
    return y_TD.to(x_TD.dtype)


def _product(
    x_PK: torch.Tensor, weight_ENK: torch.Tensor, bias_EN: torch.Tensor | None, index: int
) -> torch.Tensor:
    y_PN = x_PK @ weight_ENK[index].mT
    return y_PN if bias_EN is None else y_PN.add_(bias_EN[index])
