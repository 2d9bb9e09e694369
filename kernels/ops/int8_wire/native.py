"""Blockwise int8 payloads through the native kernels: one pass each way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.native.library import library
from kernels.native.sums import FLOAT_KINDS, addresses_of
from kernels.ops.int8_wire.by_piece import code_by_piece
from kernels.ops.int8_wire.layout import BLOCK_BYTES, Layout

# B blocks of a payload, Y bytes of a block, N values.


def int8_wire(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    *,
    wants_values: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.int8_wire.reference.int8_wire`."""
    return code_by_piece(x, payload_BY, layout, encode_into, _decode if wants_values else None)


def encode_into(x_N: torch.Tensor, payload: torch.Tensor) -> None:
    """Write the payload of x; both contiguous, the payload of as many bytes as its blocks have."""
    kind = FLOAT_KINDS[x_N.dtype]
    library().int8_encode(kind, x_N.data_ptr(), x_N.numel(), payload.data_ptr())


def decode_into(payload: torch.Tensor, x_N: torch.Tensor) -> None:
    """Write the values of a payload to x; both contiguous."""
    kind = FLOAT_KINDS[x_N.dtype]
    library().int8_decode(kind, payload.data_ptr(), x_N.numel(), x_N.data_ptr())


def total_into(payloads: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Write the payload of the sum of all payloads, decoded to float32 and added in their order."""
    num_blocks = out.numel() // BLOCK_BYTES
    library().int8_total(addresses_of(payloads), len(payloads), num_blocks, out.data_ptr())


def _decode(part_BY: torch.Tensor, piece: torch.Tensor) -> None:
    if piece.is_contiguous():
        decode_into(part_BY, piece.view(-1))
        return
    flat_N = torch.empty(piece.numel(), dtype=piece.dtype)
    decode_into(part_BY, flat_N)
    piece.copy_(flat_N.view(piece.shape))
