"""Encode and decode e4m3 blocks and mxfp4 in torch: the oracle of the in-kernel decoders."""

from __future__ import annotations

import torch

from kernels.quantise import FP8_LIMIT

# ... any leading dims, N rows, K columns; a block is square, an mxfp4 group lies along K.

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_GROUP = 32
_E2M1_LARGEST_EXPONENT = 2
_E8M0_BIAS = 127


def is_e8m0(scale: torch.Tensor) -> bool:
    """Whether scales are powers of two in a byte (as bytes or as torch's own dtype)."""
    return scale.dtype in (torch.uint8, torch.float8_e8m0fnu)


def widen_scale(scale: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Scales as numbers: ue8m0 bytes b are 2^(b - 127); anything else is cast."""
    if is_e8m0(scale):
        scale = scale.view(torch.float8_e8m0fnu).float()
    return scale.to(wide)


def encode_e8m0(scale: torch.Tensor) -> torch.Tensor:
    """Positive scales rounded up to a power of two, as bytes: nothing overflows its block."""
    exponent = torch.ceil(torch.log2(scale.float())).clamp(-127, 127)
    return (exponent + _E8M0_BIAS).to(torch.uint8)


def spread_blocks(scale: torch.Tensor, block: int, shape: torch.Size) -> torch.Tensor:
    """One scale a block (..., N/block, K/block) → one a weight (..., N, K)."""
    rows = scale.repeat_interleave(block, dim=-2)[..., : shape[-2], :]
    return rows.repeat_interleave(block, dim=-1)[..., : shape[-1]]


def quantise_blocks(
    weight: torch.Tensor, block: int, *, has_e8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 with one scale for every block × block square.

    Shapes: weight (..., N, K) → values (..., N, K) e4m3fn, scales (..., ceil(N/block),
    ceil(K/block)) float32, or uint8 holding ue8m0.
    Numerics: |decoded - weight| ≤ half a step of e4m3 at the block's scale.
    """
    n, k = weight.shape[-2:]
    padded = torch.nn.functional.pad(weight.float(), (0, -k % block, 0, -n % block))
    tiles = padded.unflatten(-1, (-1, block)).unflatten(-3, (-1, block))
    amax = tiles.abs().amax((-1, -3))
    scale = torch.where(amax > 0, amax / FP8_LIMIT, torch.ones_like(amax))
    stored = encode_e8m0(scale) if has_e8m0 else scale
    wide = spread_blocks(widen_scale(stored, torch.float32), block, weight.shape)
    values = (weight.float() / wide).clamp(-FP8_LIMIT, FP8_LIMIT)
    return values.to(torch.float8_e4m3fn), stored


def dequantise_blocks(
    values: torch.Tensor, scale: torch.Tensor, block: int, wide: torch.dtype
) -> torch.Tensor:
    """Inverse of `quantise_blocks` in the dtype `wide`; values are e4m3fn or its bytes."""
    if values.dtype == torch.uint8:
        values = values.view(torch.float8_e4m3fn)
    return values.to(wide) * spread_blocks(widen_scale(scale, wide), block, values.shape)


def pack_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two e2m1 in a byte, the even column in the low nibble; one ue8m0 for 32 along K.

    Shapes: weight (..., K), K a multiple of 32 → bytes (..., K/2), scales (..., K/32), uint8.
    Numerics: the scale is 2^(floor(log2 amax) - 2); values round to the nearest of the table.
    Source: OCP Microscaling Formats 1.0, sections 5.3 and 6.3.
    """
    groups = weight.float().unflatten(-1, (-1, MXFP4_GROUP))
    amax = groups.abs().amax(-1).clamp(min=2.0**-120)
    exponent = torch.floor(torch.log2(amax)) - _E2M1_LARGEST_EXPONENT
    scaled = groups / torch.exp2(exponent)[..., None]
    table = torch.tensor(E2M1_VALUES, device=weight.device)
    index = (scaled.abs()[..., None] - table).abs().argmin(-1).to(torch.uint8)
    nibble = (index | (scaled < 0).to(torch.uint8) << 3).flatten(-2)
    packed = nibble[..., 0::2] | nibble[..., 1::2] << 4
    return packed, (exponent + _E8M0_BIAS).clamp(0, 254).to(torch.uint8)


def unpack_mxfp4(packed: torch.Tensor, scale: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Inverse of `pack_mxfp4`, exactly: (..., K/2) bytes → (..., K) in the dtype `wide`."""
    table = torch.tensor(E2M1_VALUES, dtype=wide, device=packed.device)
    nibble = torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2)
    magnitude = table[(nibble & 7).int()]
    values = torch.where(nibble >= 8, -magnitude, magnitude)
    return values * widen_scale(scale, wide).repeat_interleave(MXFP4_GROUP, dim=-1)
