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
from kernels.collectives.codec import (
    add_into,
    decode_into,
    empty_payload,
    encode_into,
    payload_bytes,
    settle_into,
)
from kernels.collectives.reduction import cut, extend
from kernels.ops.int8_wire import Layout, decode, encode, layout_of

Parts = Sequence[torch.Tensor]
# Values at a time: long enough that a transfer hides the start of the next, short enough that the
# first and the last chunk, which nothing hides, do not matter.
CHUNK = 1 << 20
# Chunks under way: one is encoded, one goes to its owners, one comes back.
_NUM_ROOMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Movers:
    """What carries the payloads: an all-to-all and an all-gather of bytes.

    `overlaps`: whether they may run in another thread while this one computes.
    """

    rank: int
    size: int
    all_to_all: Callable[[Parts, Parts], None]
    all_gather: Callable[[Parts], None]
    overlaps: bool = True


def all_reduce(x_N: torch.Tensor, reduction: Reduction, movers: Movers, chunk: int = CHUNK) -> None:
    """Two-shot: shares travel encoded, the owner's total travels encoded, all decode it.

    A long message goes in chunks: while one is on the wire, the next is encoded and the one
    before is settled and decoded. Transfers have a thread of their own and one order.
    """
    cuts = [cut(chunk_N, movers.size) for chunk_N in x_N.split(chunk)]
    # The first chunk is as long as any.
    rooms = [_Room(pieces, movers.rank) for pieces in cuts[:_NUM_ROOMS]]
    work = [
        _Chunk(pieces, rooms[number % _NUM_ROOMS], reduction, movers)
        for number, pieces in enumerate(cuts)
    ]
    if movers.overlaps and len(work) > 1:
        _run_overlapped(work)
        return
    for part in work:
        part.run()


def _run_overlapped(work: Sequence[_Chunk]) -> None:
    scattering: list[Future[None]] = []
    gathering: list[Future[None]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="int8-wire") as wire:
        for step in range(len(work) + 2):
            if step < len(work):
                work[step].encode()
                scattering.append(wire.submit(work[step].scatter))
            if 0 <= step - 1 < len(work):
                scattering[step - 1].result()
                work[step - 1].settle()
                gathering.append(wire.submit(work[step - 1].gather))
            if step >= 2:
                gathering[step - 2].result()
                work[step - 2].decode()


class _Room:
    """Memory for the payloads of one chunk after the other, mapped once."""

    def __init__(self, pieces: Parts, rank: int) -> None:
        self.payloads = [empty_payload(piece_N, len(piece_N)) for piece_N in pieces]
        mine_B = self.payloads[rank]
        self.received = [
            # What a rank gives itself does not move.
            mine_B[:0] if index == rank else torch.empty_like(mine_B)
            for index in range(len(pieces))
        ]


class _Chunk:
    """A part of an all-reduce, in its five stages."""

    def __init__(self, pieces: Parts, room: _Room, reduction: Reduction, movers: Movers) -> None:
        self._movers, self._pieces = movers, pieces
        self._reduction: Reduction = reduction
        mine = payload_bytes(len(pieces[movers.rank]))
        self._received = [room_B[:mine] for room_B in room.received]
        self._payloads = [
            room_B[: payload_bytes(len(piece_N))]
            for piece_N, room_B in zip(pieces, room.payloads, strict=True)
        ]

    def run(self) -> None:
        """One stage after the other."""
        for stage in (self.encode, self.scatter, self.settle, self.gather, self.decode):
            stage()

    def encode(self) -> None:
        """What the others own."""
        for rank, piece_N in enumerate(self._pieces):
            if rank != self._movers.rank:
                encode_into(piece_N, self._payloads[rank])

    def scatter(self) -> None:
        """Shares to their owners."""
        sent = list(self._payloads)
        sent[self._movers.rank] = self._received[self._movers.rank]
        self._movers.all_to_all(sent, self._received)

    def settle(self) -> None:
        """The owner's piece, added in the order of the ranks, encoded, and decoded in place."""
        mine = self._movers.rank
        settle_into(self._pieces[mine], self._received, mine, self._payloads[mine], self._reduction)

    def gather(self) -> None:
        """All totals to all ranks, where the shares were."""
        self._movers.all_gather(self._payloads)

    def decode(self) -> None:
        """What the others own."""
        for rank, piece_N in enumerate(self._pieces):
            if rank != self._movers.rank:
                decode_into(self._payloads[rank], piece_N)


def reduce_scatter(parts: Parts, out_N: torch.Tensor, reduction: Reduction, movers: Movers) -> None:
    """out = the total of parts[rank]; shares travel encoded, the total is rounded once."""
    sent = [_encoded(part_N) for part_N in parts]
    received = [empty_payload(part_N, len(out_N)) for part_N in parts]
    movers.all_to_all(sent, received)
    total_N = torch.empty(len(out_N), device=out_N.device)
    add_into(received, total_N, reduction)
    out_N.copy_(total_N)


def all_gather(parts: Parts, movers: Movers) -> None:
    """Fill every part, this rank's own included, with what all ranks decode."""
    payloads = [empty_payload(part_N, len(part_N)) for part_N in parts]
    encode_into(parts[movers.rank], payloads[movers.rank])
    movers.all_gather(payloads)
    for part_N, payload_B in zip(parts, payloads, strict=True):
        decode_into(payload_B, part_N)


def all_to_all(outgoing: Parts, incoming: Parts, movers: Movers) -> None:
    """incoming[j] is what rank j encoded of its outgoing[rank], this rank's own included."""
    sent = [_encoded(part_N) for part_N in outgoing]
    received = [empty_payload(part_N, len(part_N)) for part_N in incoming]
    movers.all_to_all(sent, received)
    for part_N, payload_B in zip(incoming, received, strict=True):
        decode_into(payload_B, part_N)


def reference_all_reduce(
    shards: Sequence[torch.Tensor], reduction: Reduction = "sum", chunk: int = CHUNK
) -> list[torch.Tensor]:
    """What every rank holds afterwards, from the shards of all, in one process and plain torch."""
    size, dtype = len(shards), shards[0].dtype
    results: list[torch.Tensor] = []
    for chunks in zip(*(shard.split(chunk) for shard in shards), strict=True):
        for index in range(size):
            pieces = [cut(chunk_N, size)[index] for chunk_N in chunks]
            shares = [_round_trip(piece_N, torch.float32) for piece_N in pieces]
            total_N = shares[0].clone()
            for share_N in shares[1:]:
                extend(total_N, share_N, reduction)
            results.append(_round_trip(total_N, dtype))
    return [torch.cat(results) for _ in shards]


def _encoded(x_N: torch.Tensor) -> torch.Tensor:
    payload_B = empty_payload(x_N, len(x_N))
    encode_into(x_N, payload_B)
    return payload_B


def _round_trip(x_N: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What receivers decode, by the op's reference."""
    layout = layout_of(x_N)
    decoded = Layout(shape=layout.shape, dtype=dtype, axis=0, sizes=layout.sizes)
    return decode(encode(x_N, layout, impl="torch"), decoded, impl="torch")
