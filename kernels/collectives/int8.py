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
    total_into,
)
from kernels.collectives.reduction import cut, extend
from kernels.ops.int8_wire import Layout, decode, encode, layout_of

Parts = Sequence[torch.Tensor]
# Values at a time: long enough that a transfer hides the start of the next, short enough that the
# first and the last chunk, which nothing hides, do not matter.
CHUNK = 1 << 20


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
        self._sent: list[torch.Tensor] = []
        self._received: list[torch.Tensor] = []
        self._payloads: list[torch.Tensor] = []

    def run(self) -> None:
        """One stage after the other."""
        for stage in (self.encode, self.scatter, self.total, self.gather, self.decode):
            stage()

    def encode(self) -> None:
        """Every rank's share."""
        self._sent = [_encoded(piece_N) for piece_N in self._pieces]
        self._received = [
            # What a rank gives itself stays where it is.
            sent_B if rank == self._movers.rank else empty_payload(sent_B, self._mine)
            for rank, sent_B in enumerate(self._sent)
        ]

    def scatter(self) -> None:
        """Shares to their owners."""
        self._movers.all_to_all(self._sent, self._received)

    def total(self) -> None:
        """The owner's piece, added in the order of the ranks and encoded."""
        # What was sent is of no use any more, and its memory is mapped already.
        self._payloads = self._sent
        mine_B = self._payloads[self._movers.rank]
        total_into(self._received, mine_B, self._mine, self._reduction)

    def gather(self) -> None:
        """All totals to all ranks."""
        self._movers.all_gather(self._payloads)

    def decode(self) -> None:
        """Every piece, this rank's own included."""
        for piece_N, payload_B in zip(self._pieces, self._payloads, strict=True):
            decode_into(payload_B, piece_N)


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
