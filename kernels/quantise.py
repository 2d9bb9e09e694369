"""Symmetric block quantisation: the one definition that kernels and references share.

q = round(x / s) with s = amax(block) / limit, so that a block's largest value is exact. A block
of zeros has scale 1: dequantising gives zeros, never NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FP8_LIMIT = 448.0  # largest finite e4m3fn
INT8_LIMIT = 127.0
FP8_GROUP = 128  # activations: one scale for 128 neighbouring values of a row


def group_size(quant: str, width: int) -> int:
    """Values that share a scale: 128 for fp8, the whole row for int8."""
    return min(FP8_GROUP, width) if quant == "fp8" else width


def quantise_rows(x_TD: torch.Tensor, quant: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows to "fp8" (e4m3fn, groups of 128) or "int8" (one group a row).

    Shapes: x (T, D) → values (T, D), scales (T, ceil(D / group)) float32.
    Numerics: |dequantised - x| ≤ half a step of the block: amax / 254 for int8.
    """
    import torch

    if quant not in ("fp8", "int8"):
        raise ValueError(f"quant is {quant!r}; it must be 'none', 'fp8' or 'int8'")
    num_rows, width = x_TD.shape
    group = group_size(quant, width)
    num_groups = -(-width // group) if width else 0
    padded = torch.nn.functional.pad(x_TD, (0, num_groups * group - width))
    blocks_TGB = padded.reshape(num_rows, num_groups, group)
    limit = FP8_LIMIT if quant == "fp8" else INT8_LIMIT
    amax_TG = blocks_TGB.abs().amax(-1) if width else blocks_TGB.new_zeros(num_rows, 0)
    scale_TG = torch.where(amax_TG > 0, amax_TG / limit, torch.ones_like(amax_TG))
    scaled = (blocks_TGB / scale_TG[..., None]).clamp(-limit, limit)
    if quant == "int8":
        values = scaled.round().to(torch.int8)
    else:
        values = scaled.float().to(torch.float8_e4m3fn)
    return values.reshape(num_rows, num_groups * group)[:, :width].contiguous(), scale_TG.float()


def dequantise_rows(values_TD: torch.Tensor, scale_TG: torch.Tensor, quant: str) -> torch.Tensor:
    """Inverse of `quantise_rows`, float32 (T, D)."""
    width = values_TD.shape[-1]
    wide = scale_TG.repeat_interleave(group_size(quant, width), dim=-1)[:, :width]
    return values_TD.float() * wide
