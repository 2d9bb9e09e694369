"""Payloads coded one piece after the other, in place: what the CPU's forms share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.ops.int8_wire.layout import BLOCK_BYTES, Layout

# B blocks of a payload, Y bytes of a block, N values of a piece.

# (the piece's values (N,), contiguous; its blocks (B, Y), to be written)
Encode = Callable[[torch.Tensor, torch.Tensor], None]
# (the piece's blocks (B, Y); the piece, a view of any strides, to be written)
Decode = Callable[[torch.Tensor, torch.Tensor], None]


def code_by_piece(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    encode: Encode,
    decode: Decode | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Encode x unless a payload is given; decode it unless `decode` is None."""
    if payload_BY is None:
        assert x is not None
        payload_BY = torch.empty(layout.num_blocks, BLOCK_BYTES, dtype=torch.uint8)
        targets = payload_BY.split(layout.blocks)
        for piece, part_BY in zip(x.split(layout.sizes, layout.axis), targets, strict=True):
            encode(piece.reshape(-1), part_BY)
    if decode is None:
        return payload_BY, None
    values = torch.empty(layout.shape, dtype=layout.dtype)
    parts = payload_BY.contiguous().split(layout.blocks)
    for piece, part_BY in zip(values.split(layout.sizes, layout.axis), parts, strict=True):
        decode(part_BY, piece)
    return payload_BY, values
