"""Blockwise int8 payloads on a CPU: written in place, nothing padded that fills its blocks."""

from __future__ import annotations

import torch

from kernels.ops.int8_wire.layout import BLOCK, BLOCK_BYTES, Layout
from kernels.ops.int8_wire.reference import scales

# B blocks of a payload, Y bytes of a block, V values of a block.


def int8_wire(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    *,
    wants_values: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.int8_wire.reference.int8_wire`."""
    if payload_BY is None:
        assert x is not None
        payload_BY = torch.empty(layout.num_blocks, BLOCK_BYTES, dtype=torch.uint8)
        targets = payload_BY.split(layout.blocks)
        for piece, part_BY in zip(x.split(layout.sizes, layout.axis), targets, strict=True):
            _encode(piece.reshape(-1), part_BY)
    if not wants_values:
        return payload_BY, None
    values = torch.empty(layout.shape, dtype=layout.dtype)
    parts = payload_BY.split(layout.blocks)
    for piece, part_BY in zip(values.split(layout.sizes, layout.axis), parts, strict=True):
        _decode(part_BY, piece)
    return payload_BY, values


def _encode(x_N: torch.Tensor, part_BY: torch.Tensor) -> None:
    """Quantise all whole blocks in one go, then the last one."""
    whole = len(x_N) // BLOCK
    values_BV = x_N[: whole * BLOCK].view(whole, BLOCK)
    _encode_blocks(values_BV, part_BY[:whole])
    rest = len(x_N) - whole * BLOCK
    if rest:
        last_V = x_N.new_zeros(1, BLOCK)
        last_V[0, :rest] = x_N[whole * BLOCK :]
        _encode_blocks(last_V, part_BY[whole:])


def _encode_blocks(values_BV: torch.Tensor, part_BY: torch.Tensor) -> None:
    if not len(values_BV):
        return
    low_B, high_B = values_BV.aminmax(dim=-1)
    scale_B = scales(torch.maximum(high_B, -low_B).float())
    scaled_BV = torch.div(values_BV, scale_B[:, None]).round_()
    part_BY[:, :BLOCK].view(torch.int8).copy_(scaled_BV)
    part_BY[:, BLOCK:].copy_(scale_B[:, None].view(torch.uint8))


def _decode(part_BY: torch.Tensor, piece: torch.Tensor) -> None:
    scale_B1 = part_BY[:, BLOCK:].contiguous().view(torch.float32)
    values_BV = part_BY[:, :BLOCK].view(torch.int8) * scale_B1
    piece.copy_(values_BV.view(-1)[: piece.numel()].view(piece.shape))
