"""What an MLP block is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.ops.packed_gemm.quantised import QuantisedMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpWeights:
    """Shapes: norm (C); gate_up (2I, C), the gate first; down (C, I)."""

    norm_C: torch.Tensor
    eps: float
    gate_up: QuantisedMatrix
    down: QuantisedMatrix
