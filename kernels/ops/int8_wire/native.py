"""Blockwise int8 payloads through the native kernels: one pass each way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.native.library import library
from kernels.native.sums import FLOAT_KINDS, addresses_of
from kernels.ops.int8_wire.by_piece import code_by_piece
from kernels.ops.int8_wire.layout import Layout

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


def settle_into(
    x_N: torch.Tensor, payloads: Sequence[torch.Tensor], rank: int, out: torch.Tensor
) -> None:
    """Write the payload of the sum of all shares to `out`, and what it decodes to in place of x.

    Shapes: x contiguous, the share of `rank`, rounded as its payload would be; `payloads` of the
    other ranks in their order, whatever stands at `rank`, added in float32.
    """
    shares = addresses_of([*payloads[:rank], out, *payloads[rank + 1 :]])
    library().int8_settle(
        FLOAT_KINDS[x_N.dtype],
        x_N.data_ptr(),
        x_N.numel(),
        shares,
        len(payloads),
        rank,
        out.data_ptr(),
    )


def _decode(part_BY: torch.Tensor, piece: torch.Tensor) -> None:
    if piece.is_contiguous():
        decode_into(part_BY, piece.view(-1))
        return
    flat_N = torch.empty(piece.numel(), dtype=piece.dtype)
    decode_into(part_BY, flat_N)
    piece.copy_(flat_N.view(piece.shape))
