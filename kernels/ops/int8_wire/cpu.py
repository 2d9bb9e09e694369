"""Blockwise int8 payloads on a CPU: written in place, as many blocks at a time as caches hold."""

from __future__ import annotations

import torch

from kernels.ops.int8_wire.by_piece import code_by_piece
from kernels.ops.int8_wire.layout import BLOCK, Layout
from kernels.ops.int8_wire.reference import scales

# B blocks of a payload, Y bytes of a block, V values of a block.

# Blocks at a time: 1 MiB of float32, which stays in the cache and in memory that is mapped.
CHUNK_BLOCKS = 2048


def int8_wire(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    *,
    wants_values: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.int8_wire.reference.int8_wire`."""
    return code_by_piece(x, payload_BY, layout, _encode, _decode if wants_values else None)


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
    chunks = zip(values_BV.split(CHUNK_BLOCKS), part_BY.split(CHUNK_BLOCKS), strict=True)
    for chunk_BV, target_BY in chunks:
        wide_BV = chunk_BV.float()
        scale_B1 = scales(wide_BV.abs().amax(-1))[:, None]
        scaled_BV = torch.div(wide_BV, scale_B1).round_()
        target_BY[:, :BLOCK].view(torch.int8).copy_(scaled_BV)
        target_BY[:, BLOCK:].copy_(scale_B1.view(torch.uint8))


def _decode(part_BY: torch.Tensor, piece: torch.Tensor) -> None:
    """Into the piece itself: in chunks where its values are neighbours, else all at once."""
    if not piece.is_contiguous():
        piece.copy_(_values(part_BY)[: piece.numel()].view(piece.shape))
        return
    flat = piece.view(-1)
    for number, chunk_BY in enumerate(part_BY.split(CHUNK_BLOCKS)):
        target_N = flat[number * CHUNK_BLOCKS * BLOCK :][: len(chunk_BY) * BLOCK]
        target_N.copy_(_values(chunk_BY)[: len(target_N)])


def _values(part_BY: torch.Tensor) -> torch.Tensor:
    scale_B1 = part_BY[:, BLOCK:].contiguous().view(torch.float32)
    return (part_BY[:, :BLOCK].view(torch.int8) * scale_B1).view(-1)
