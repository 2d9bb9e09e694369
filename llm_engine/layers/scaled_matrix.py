"""A linear map whose weights stay in e4m3, with a scale for each square block."""

# M rows, K inputs, N outputs.

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from llm_engine.layers.kept_forms import Op
from llm_engine.weights.checkpoint import ScaledWeights


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """y = x W^T + b, the rows of W in parts. Shapes: x (M, K); y (M, N) in x's dtype; bias (N,).

    Matrices that share their input are one part where each but the last has whole blocks of rows:
    a scale is for the rows of its block alone. Others are products of their own.
    """

    parts: tuple[ScaledWeights, ...]
    bias_N: torch.Tensor | None
    gemm: Op

    @classmethod
    def stack(
        cls, matrices: Sequence[ScaledWeights], bias_N: torch.Tensor | None, gemm: Op
    ) -> Self:
        """Matrices below one another. `gemm` as in `kernels.ops.block_fp8_gemm`."""
        runs: list[list[ScaledWeights]] = []
        for matrix in matrices:
            if runs and runs[-1][-1].num_rows % matrix.block == 0:
                runs[-1].append(matrix)
            else:
                runs.append([matrix])
        return cls(tuple(_joined(run) for run in runs), bias_N, gemm)

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        in_bias = 0 if self.bias_N is None else self.bias_N.numel()
        return in_bias + sum(part.values.numel() for part in self.parts)

    def __call__(self, x_MK: torch.Tensor) -> torch.Tensor:
        """Apply the map."""
        outputs = [
            self.gemm(x_MK, None, part.values, part.scales, block=part.block, out_dtype=x_MK.dtype)
            for part in self.parts
        ]
        y_MN = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return y_MN if self.bias_N is None else y_MN.add_(self.bias_N)


def _joined(run: list[ScaledWeights]) -> ScaledWeights:
    if len(run) == 1:
        return run[0]
    # As bytes: not every device copies eight-bit floats.
    values = torch.cat([part.values.view(torch.uint8) for part in run])
    scales = torch.cat([part.scales for part in run])
    return replace(run[0], values=values.view(run[0].values.dtype), scales=scales)
