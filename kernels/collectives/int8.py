"""The `int8` contract: blocks of 128 on the wire, and the same numbers on every rank.

Whoever owns values goes on with what the others will decode, also its own share of a sum, so
ranks never differ. Built on any form that moves bytes.
Numerics: each encoding errs by at most half a step of its block, amax / 127 / 2; a sum of N ranks
by the N steps of its shares and one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.reduction import combine_into, cut, piece_sizes
from kernels.ops.int8_wire import BLOCK_BYTES, Layout, decode, encode

Parts = Sequence[torch.Tensor]
# Values at a time: long enough that a transfer hides the start of the next, short enough that the
# first and the last chunk, which nothing hides, do not matter.
CHUNK = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Movers:
    """What carries the payloads: an all-to-all and an all-gather of bytes."""

    rank: int
    size: int
    all_to_all: Callable[[Parts, Parts], None]
    all_gather: Callable[[Parts], None]


def all_reduce(x_N: torch.Tensor, reduction: Reduction, movers: Movers, chunk: int = CHUNK) -> None:
    """Two-shot: shares travel encoded, the owner's total travels encoded, all decode it.

    A long message goes in chunks: while one is on the wire, the next is encoded and the one
    before is added up and decoded. Transfers have a thread of their own and one order.
    """
    chunks = list(x_N.split(chunk))
    if len(chunks) == 1:
        _Chunk(x_N, reduction, movers).run()
        return
    work = [_Chunk(chunk_N, reduction, movers) for chunk_N in chunks]
    scattering: list[Future[None]] = []
    gathering: list[Future[None]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="int8-wire") as wire:
        for step in range(len(work) + 2):
            if step < len(work):
                work[step].encode()
                scattering.append(wire.submit(work[step].scatter))
            if 0 <= step - 1 < len(work):
                scattering[step - 1].result()
                work[step - 1].total()
                gathering.append(wire.submit(work[step - 1].gather))
            if step >= 2:
                gathering[step - 2].result()
                work[step - 2].decode()


class _Chunk:
    """A part of an all-reduce, in its five stages."""

    def __init__(self, x_N: torch.Tensor, reduction: Reduction, movers: Movers) -> None:
        self._movers, self._pieces = movers, cut(x_N, movers.size)
        self._reduction: Reduction = reduction
        self._mine = len(self._pieces[movers.rank])
        self._payloads: list[torch.Tensor] = []

    def run(self) -> None:
        """One stage after the other."""
        for stage in (self.encode, self.scatter, self.total, self.gather, self.decode):
            stage()

    def encode(self) -> None:
        """Every rank's share."""
        self._sent = [_encode(piece_N).view(-1) for piece_N in self._pieces]
        self._received = [_empty_payload(piece_N, self._mine) for piece_N in self._pieces]

    def scatter(self) -> None:
        """Shares to their owners."""
        self._movers.all_to_all(self._sent, self._received)

    def total(self) -> None:
        """The owner's piece, added in the order of the ranks and encoded."""
        total_N = _add(self._received, self._mine, self._reduction)
        self._payloads = [_empty_payload(piece_N, len(piece_N)) for piece_N in self._pieces]
        self._payloads[self._movers.rank].copy_(_encode(total_N).view(-1))

    def gather(self) -> None:
        """All totals to all ranks."""
        self._movers.all_gather(self._payloads)

    def decode(self) -> None:
        """Every piece, this rank's own included."""
        for piece_N, payload_B in zip(self._pieces, self._payloads, strict=True):
            piece_N.copy_(_decode(payload_B, len(piece_N), piece_N.dtype))


def reduce_scatter(parts: Parts, out_N: torch.Tensor, reduction: Reduction, movers: Movers) -> None:
    """out = the total of parts[rank]; shares travel encoded, the total is rounded once."""
    out_N.copy_(_owned_total(parts, reduction, movers))


def all_gather(parts: Parts, movers: Movers) -> None:
    """Fill every part, this rank's own included, with what all ranks decode."""
    payloads = [_empty_payload(part_N, len(part_N)) for part_N in parts]
    payloads[movers.rank].copy_(_encode(parts[movers.rank]).view(-1))
    movers.all_gather(payloads)
    for part_N, payload_B in zip(parts, payloads, strict=True):
        part_N.copy_(_decode(payload_B, len(part_N), part_N.dtype))


def all_to_all(outgoing: Parts, incoming: Parts, movers: Movers) -> None:
    """incoming[j] is what rank j encoded of its outgoing[rank], this rank's own included."""
    sent = [_encode(part_N).view(-1) for part_N in outgoing]
    received = [_empty_payload(part_N, len(part_N)) for part_N in incoming]
    movers.all_to_all(sent, received)
    for part_N, payload_B in zip(incoming, received, strict=True):
        part_N.copy_(_decode(payload_B, len(part_N), part_N.dtype))


def reference_all_reduce(
    shards: Sequence[torch.Tensor], reduction: Reduction = "sum", chunk: int = CHUNK
) -> list[torch.Tensor]:
    """What every rank holds afterwards, from the shards of all, in one process."""
    size, dtype = len(shards), shards[0].dtype
    results: list[torch.Tensor] = []
    for chunks in zip(*(shard.split(chunk) for shard in shards), strict=True):
        for index, count in enumerate(piece_sizes(len(chunks[0]), size)):
            shares = [_encode(cut(chunk_N, size)[index]).view(-1) for chunk_N in chunks]
            total_N = _add(shares, count, reduction)
            results.append(_decode(_encode(total_N).view(-1), count, dtype))
    return [torch.cat(results) for _ in shards]


def _owned_total(parts: Parts, reduction: Reduction, movers: Movers) -> torch.Tensor:
    count = len(parts[movers.rank])
    sent = [_encode(part_N).view(-1) for part_N in parts]
    received = [_empty_payload(part_N, count) for part_N in parts]
    movers.all_to_all(sent, received)
    return _add(received, count, reduction)


def _add(payloads: Parts, count: int, reduction: Reduction) -> torch.Tensor:
    """Shares decoded to float32 and added in their order."""
    shares = [_decode(payload_B, count, torch.float32) for payload_B in payloads]
    total_N = torch.empty(count, device=payloads[0].device)
    combine_into(total_N, shares, reduction)
    return total_N


def _layout(count: int, dtype: torch.dtype) -> Layout:
    return Layout(shape=(count,), dtype=dtype, axis=0, sizes=(count,))


def _encode(x_N: torch.Tensor) -> torch.Tensor:
    return encode(x_N, _layout(len(x_N), x_N.dtype))


def _decode(payload_B: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    return decode(payload_B.view(-1, BLOCK_BYTES), _layout(count, dtype))


def _empty_payload(like_N: torch.Tensor, count: int) -> torch.Tensor:
    num_bytes = _layout(count, torch.float32).num_blocks * BLOCK_BYTES
    return like_N.new_empty(num_bytes, dtype=torch.uint8)
