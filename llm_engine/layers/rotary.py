"""Rotary position embedding with linear and Llama 3 frequency scaling."""

# N tokens, X heads, D head dim.

import math
from typing import Self

import torch

from llm_engine.model_config import ModelConfig, RopeConfig


class Rotary:
    """Rotation of head halves by position; angles in float32, then rounded to the model's dtype.

    Source: Su et al. 2021, arXiv:2104.09864; the two halves of a head form the pairs.
    """

    def __init__(self, frequencies: torch.Tensor, dtype: torch.dtype) -> None:
        """Keep the angles per position. Shapes: frequencies (D/2,)."""
        self._frequencies = frequencies
        self._dtype = dtype

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        dtype: torch.dtype,
        frequency_divisors: torch.Tensor | None = None,
    ) -> Self:
        """Build from a model's config; `frequency_divisors` (D/2,) are those a GGUF file stores."""
        frequencies = rotary_frequencies(config.rope, config.head_dim)
        if frequency_divisors is not None:
            frequencies = frequencies / frequency_divisors.float()
        return cls(frequencies, dtype)

    def tables(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and signed sin rows. Shapes: positions (N,); results (N, 1, D)."""
        angles = torch.outer(positions_N.float(), self._frequencies)
        cos, sin = angles.cos(), angles.sin()
        cos_ND = torch.cat((cos, cos), dim=-1).to(self._dtype)
        # The sign of the rotated first half lies in the table, so that a roll is all that is left.
        sin_ND = torch.cat((-sin, sin), dim=-1).to(self._dtype)
        return cos_ND.unsqueeze(1), sin_ND.unsqueeze(1)

    @staticmethod
    def apply(x_NXD: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotate every head: x * cos + swap_halves(x) * signed sin. Shapes: (N, X, D) kept."""
        cos_N1D, sin_N1D = tables
        swapped_NXD = x_NXD.roll(x_NXD.shape[-1] // 2, dims=-1)
        return torch.addcmul(x_NXD * cos_N1D, swapped_NXD, sin_N1D)


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Angles per position, (D/2,) float32: theta^(-2i/D), stretched as `rope` says.

    llama3: wavelengths above original/low are stretched by `factor`, those below original/high
    are kept, and those between are blended.
    Source: Llama 3.1 release, section on RoPE scaling.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.rope_type == "default":
        return frequencies
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    wavelengths = 2 * math.pi / frequencies
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share_kept = (rope.original_max_position / wavelengths - low) / (high - low)
    share_kept = share_kept.clamp(0.0, 1.0)
    return (1 - share_kept) * frequencies / rope.factor + share_kept * frequencies
