"""Checkpoints whose matrices are stored in FP8 with one scale for each square block.

Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3; `quantization_config` of such models:
quant_method fp8, weight_block_size, and a `weight_scale_inv` beside each weight.
"""

# N rows, K columns.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import torch

from kernels.ops.block_fp8_gemm.formats.reference import widen_scale
from llm_engine.errors import UnsupportedModel
from llm_engine.weights.checkpoint import ScaledWeights

FP8_KIND = "F8_E4M3"
SCALE_SUFFIX = "_scale_inv"
MXFP4_METHOD = "mxfp4"
_SUPPORTED = (
    "supported: none, fp8 with a square weight_block_size such as [128, 128], and mxfp4 experts of "
    "gpt-oss"
)


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """w = value · scale of its block; `block` is the side of a block."""

    block: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """None for a model that is not quantised, or in MXFP4: see `stacked_experts`.

        Raises: UnsupportedModel for any other quantisation, naming it.
        """
        raw = config.get("quantization_config")
        if not raw:
            return None
        settings = cast(Mapping[str, Any], raw)
        method = settings.get("quant_method")
        if method == MXFP4_METHOD:
            return None
        if method != "fp8":
            raise UnsupportedModel(f"weights are quantised with {method!r}; {_SUPPORTED}")
        form = settings.get("fmt", "e4m3")
        size = settings.get("weight_block_size")
        is_square = isinstance(size, list) and len(set(cast(list[int], size))) == 1
        if not is_square or form not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedModel(
                f"weights are quantised with 'fp8' in {form} and blocks of {size}; {_SUPPORTED}"
            )
        return cls(int(cast(list[int], size)[0]))

    def is_scale(self, name: str) -> bool:
        """Whether a tensor is the scales of another."""
        return name.endswith(SCALE_SUFFIX)

    def scaled(self, name: str, values: torch.Tensor, scales: torch.Tensor) -> ScaledWeights:
        """The matrix of e4m3 values (N, K) and scales (ceil(N/block), ceil(K/block)).

        Raises: UnsupportedModel for scales of another shape.
        """
        expected = tuple(-(-size // self.block) for size in values.shape)
        if tuple(scales.shape) != expected:
            raise UnsupportedModel(
                f"{name}{SCALE_SUFFIX} has the shape {tuple(scales.shape)}, but {name} of "
                f"{tuple(values.shape)} in blocks of {self.block} needs {expected}"
            )
        return ScaledWeights("fp8", values, widen_scale(scales, torch.float32), self.block)
