"""Int8 payloads of what travels: encoded, added and decoded where they lie.

The native kernels do each in one pass; without them, and on devices, the op `int8_wire` does it
in steps, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.reduction import combine_into, is_native
from kernels.ops.int8_wire import BLOCK, BLOCK_BYTES, Layout, decode, encode, native

# B bytes of a payload, N values.


def payload_bytes(count: int) -> int:
    """Bytes that `count` values take on the wire."""
    return -(-count // BLOCK) * BLOCK_BYTES


def empty_payload(like_N: torch.Tensor, count: int) -> torch.Tensor:
    """Room for the payload of `count` values, on the device of a tensor."""
    return like_N.new_empty(payload_bytes(count), dtype=torch.uint8)


def encode_into(x_N: torch.Tensor, payload_B: torch.Tensor) -> None:
    """Write the payload of x. Shapes: x (N,) contiguous; payload (`payload_bytes(N)`,)."""
    if is_native(x_N):
        native.encode_into(x_N, payload_B)
    else:
        payload_B.copy_(encode(x_N, _layout(len(x_N), x_N.dtype)).view(-1))


def decode_into(payload_B: torch.Tensor, x_N: torch.Tensor) -> None:
    """Write the values of a payload to x, contiguous."""
    if is_native(x_N):
        native.decode_into(payload_B, x_N)
    else:
        blocks_BY = payload_B.view(-1, BLOCK_BYTES)
        x_N.copy_(decode(blocks_BY, _layout(len(x_N), x_N.dtype)))


def add_into(payloads: Sequence[torch.Tensor], out_N: torch.Tensor, reduction: Reduction) -> None:
    """Write the sum of payloads, decoded to float32 and added in their order, to float32 `out`."""
    shares = [torch.empty_like(out_N) for _ in payloads]
    for payload_B, share_N in zip(payloads, shares, strict=True):
        decode_into(payload_B, share_N)
    combine_into(out_N, shares, reduction)


def settle_into(
    x_N: torch.Tensor,
    payloads: Sequence[torch.Tensor],
    rank: int,
    out_B: torch.Tensor,
    reduction: Reduction,
) -> None:
    """Write the payload of the sum of all ranks' shares to `out`, and to x what it decodes to.

    Shapes: x (N,) is the share of `rank`, which counts as the others would decode it; `payloads`
    are the shares of the ranks in their order, whatever stands at `rank`; `out` as one of them.
    """
    if reduction == "sum" and is_native(x_N):
        native.settle_into(x_N, payloads, rank, out_B)
        return
    encode_into(x_N, out_B)
    shares = [out_B if index == rank else payload_B for index, payload_B in enumerate(payloads)]
    total_N = torch.empty(len(x_N), device=out_B.device)
    add_into(shares, total_N, reduction)
    encode_into(total_N, out_B)
    decode_into(out_B, x_N)


def _layout(count: int, dtype: torch.dtype) -> Layout:
    return Layout(shape=(count,), dtype=dtype, axis=0, sizes=(count,))
