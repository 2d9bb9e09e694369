"""Blockwise int8 payloads in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.int8_wire.layout import BLOCK, BLOCK_BYTES, Layout
from kernels.quantise import INT8_LIMIT
from kernels.spec import Case

# B blocks of a payload, Y bytes of a block, V values of a block.

# Low bits of a scale that are zero: 127 times a scale is exact, so that encoding what was decoded
# gives the same payload.
CLEARED_BITS = 0xFF


def int8_wire(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    *,
    wants_values: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Encode x unless a payload is given; decode it where the values are wanted."""
    if payload_BY is None:
        assert x is not None
        pieces = x.split(layout.sizes, layout.axis)
        payload_BY = torch.cat([_encode(piece.reshape(-1)) for piece in pieces])
    return payload_BY, _decode(payload_BY, layout) if wants_values else None


def scales(largest_B: torch.Tensor) -> torch.Tensor:
    """amax / 127, rounded up to 16 significant bits; 1 for a block of zeros."""
    bits = (largest_B / INT8_LIMIT).view(torch.int32)
    scale_B = ((bits + CLEARED_BITS) & ~CLEARED_BITS).view(torch.float32)
    return torch.where(scale_B > 0, scale_B, torch.ones_like(scale_B))


def _encode(x_N: torch.Tensor) -> torch.Tensor:
    values_BV = F.pad(x_N.float(), (0, -len(x_N) % BLOCK)).view(-1, BLOCK)
    scale_B = scales(values_BV.abs().amax(-1))
    scaled_BV = (values_BV / scale_B[:, None]).round().clamp(-INT8_LIMIT, INT8_LIMIT)
    parts = (scaled_BV.to(torch.int8).view(torch.uint8), scale_B[:, None].view(torch.uint8))
    return torch.cat(parts, dim=1)


def _decode(payload_BY: torch.Tensor, layout: Layout) -> torch.Tensor:
    pieces: list[torch.Tensor] = []
    for part_BY, size in zip(payload_BY.split(layout.blocks), layout.sizes, strict=True):
        scale_B1 = part_BY[:, BLOCK:].contiguous().view(torch.float32)
        values_N = (part_BY[:, :BLOCK].view(torch.int8).float() * scale_B1).flatten()
        shape = (*layout.shape[: layout.axis], size, *layout.shape[layout.axis + 1 :])
        pieces.append(values_N[: layout.num_outer * size * layout.num_inner].view(shape))
    return torch.cat(pieces, layout.axis).to(layout.dtype)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random values with a block of zeros; for an all-to-all, three uneven groups of heads."""
    count, dtype = case.sizes["N"], TORCH_DTYPES[case.dtype]
    if case.options.get("pack", "none") == "all_to_all":
        heads, width = 7, 16
        tokens = -(-count // (heads * width))
        shape, axis, sizes = (tokens, heads, width), 1, (3, 2, 2)
    else:
        shape, axis, sizes = (count,), 0, (count,)
    x = torch.randn(shape, generator=generator).to(dtype)
    x.view(-1)[:BLOCK] = 0
    layout = Layout(shape=shape, dtype=dtype, axis=axis, sizes=sizes)
    return (x, None, layout), {"wants_values": True}


__all__ = ["BLOCK_BYTES", "example", "int8_wire", "scales"]
