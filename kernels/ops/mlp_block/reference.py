"""The MLP block in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.ops.mlp_block.weights import MlpWeights
from kernels.ops.packed_gemm.reference import packed_gemm, random_matrix
from kernels.spec import Case

# N rows, C channels, I inner channels.


def mlp_block(x_NC: torch.Tensor, weights: MlpWeights, *, quant: str = "none") -> torch.Tensor:
    """See `kernels.ops.mlp_block.mlp_block`; `quant` "groups" rounds the maps' inputs as that."""
    norm_C = weights.norm_C.to(x_NC.dtype)
    h_NC = F.rms_norm(x_NC, norm_C.shape, norm_C, weights.eps)
    gate_NI, up_NI = packed_gemm(h_NC, weights.gate_up, quant=quant).chunk(2, dim=1)
    return x_NC + packed_gemm(F.silu(gate_NI) * up_NI, weights.down, quant=quant)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normal x and random weights."""
    width, inner = case.sizes["C"], case.sizes["I"]
    x_NC = torch.randn(case.sizes["N"], width, generator=generator)
    weights = MlpWeights(
        norm_C=1 + 0.2 * torch.randn(width, generator=generator),
        eps=1e-5,
        gate_up=random_matrix(2 * inner, width, generator, **case.options),
        down=random_matrix(width, inner, generator, **case.options),
    )
    return (x_NC, weights), {"quant": "groups"}
