"""Two islands of ranks: most bytes stay inside an island, only a share of each crosses.

Each rank owns a piece within its island and has a twin in the other one. The first island adds
its piece in the order of its ranks, hands the float32 sum to the twin, who goes on with the ranks
of the second, rounds once and hands the result back: the order of all exact forms. Then each
island gathers.
Cost: 2 ((m-1) a + (m-1)/m S/B) + 2 ax + (S32 + S)/(m Bx) with m ranks in an island.
Source: the two-level form of FlashInfer pull request 4870; the exact order is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.link import Link, Message, receive, send
from kernels.collectives.reduction import accumulator_dtype, cut, extend


class _Inside:
    """The link among the ranks of one island, numbered from 0."""

    def __init__(self, link: Link, ranks: Sequence[int]) -> None:
        self._link, self._ranks = link, ranks

    @property
    def rank(self) -> int:
        return self._ranks.index(self._link.rank)

    @property
    def size(self) -> int:
        return len(self._ranks)

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        self._link.exchange(self._outside(outgoing), self._outside(incoming))

    def _outside(self, message: Message | None) -> Message | None:
        return message and replace(message, rank=self._ranks[message.rank])


def all_reduce(
    link: Link, x_N: torch.Tensor, reduction: Reduction, islands: Sequence[Sequence[int]]
) -> None:
    """The result over all ranks in place of x.

    `islands`: two runs of equally many ranks, in order, naming every rank once.
    """
    number = next(i for i, ranks in enumerate(islands) if link.rank in ranks)
    inside = _Inside(link, islands[number])
    twin = islands[1 - number][inside.rank]
    parts = cut(x_N, inside.size)
    raw = _collect(inside, parts)
    total_N = x_N.new_empty(len(parts[inside.rank]), dtype=accumulator_dtype(x_N.dtype))
    if number == 0:
        total_N.copy_(raw[0])
        _extend_all(total_N, raw[1:], reduction)
        send(link, total_N, twin)
        receive(link, parts[inside.rank], twin)
    else:
        receive(link, total_N, twin)
        _extend_all(total_N, raw, reduction)
        parts[inside.rank].copy_(total_N)
        send(link, parts[inside.rank], twin)
    _gather(inside, parts)


def _extend_all(total_N: torch.Tensor, raw: Sequence[torch.Tensor], reduction: Reduction) -> None:
    for part_N in raw:
        extend(total_N, part_N, reduction)


def _collect(inside: _Inside, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's piece as every rank of the island holds it, in their order."""
    mine, size = inside.rank, inside.size
    arrived = [torch.empty_like(parts[mine]) for _ in range(size)]
    arrived[mine] = parts[mine].clone()
    for k in range(1, size):
        to, source = (mine + k) % size, (mine - k) % size
        inside.exchange(Message(parts[to], to), Message(arrived[source], source))
    return arrived


def _gather(inside: _Inside, parts: Sequence[torch.Tensor]) -> None:
    mine, size = inside.rank, inside.size
    for k in range(1, size):
        to, source = (mine + k) % size, (mine - k) % size
        inside.exchange(Message(parts[mine], to), Message(parts[source], source))
