"""What an attention block is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.ops.packed_gemm.quantised import QuantisedMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Shapes: norm (C); qkv ((H + 2K) D, C), heads in that order; q_norm, k_norm (D); out (C, H D).

    `q_norm` and `k_norm` normalise every head before it turns; None: no norm there.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    norm_C: torch.Tensor
    qkv: QuantisedMatrix
    out: QuantisedMatrix
    qkv_bias_X: torch.Tensor | None = None
    q_norm_D: torch.Tensor | None = None
    k_norm_D: torch.Tensor | None = None
