"""Every rank to every other, in rounds: one message out and one in at a time for each rank.

Round k sends to the rank k after and receives from the rank k before: no two ranks send to the
same one, so no link and no switch port carries two streams of one round.
Cost: (N-1) a + (N-1)/N S/Bc.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.link import Following, Link, Message
from kernels.collectives.reduction import combine_into, cut
from kernels.collectives.ring import all_gather


def rounds(rank: int, size: int) -> list[tuple[int, int]]:
    """(send to, receive from) of each round for a rank."""
    return [((rank + k) % size, (rank - k) % size) for k in range(1, size)]


def all_to_all(
    link: Link, outgoing: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
) -> None:
    """outgoing[j] to rank j, incoming[j] from rank j; sizes differ as they like."""
    if incoming[link.rank] is not outgoing[link.rank]:
        incoming[link.rank].copy_(outgoing[link.rank])
    for to, source in rounds(link.rank, link.size):
        link.exchange(Message(outgoing[to], to), Message(incoming[source], source))


def reduce_scatter(
    link: Link, parts: Sequence[torch.Tensor], out_N: torch.Tensor, reduction: Reduction
) -> None:
    """out = parts[rank] of all ranks, in the order of the ranks: exact. May be parts[rank]."""
    arrived = [torch.empty_like(out_N) for _ in range(link.size)]
    arrived[link.rank] = parts[link.rank]

    def combine(begin: int, end: int) -> None:
        combine_into(out_N[begin:end], [part_N[begin:end] for part_N in arrived], reduction)

    summing = Following(combine, len(out_N))
    todo = rounds(link.rank, link.size)
    for number, (to, source) in enumerate(todo, 1):
        # All others are there by the last round, so the sum keeps up with what it brings.
        follower = summing if number == len(todo) else None
        link.exchange(Message(parts[to], to), Message(arrived[source], source, follower))
    summing.upto(len(out_N))


def all_reduce(link: Link, x_N: torch.Tensor, reduction: Reduction) -> None:
    """Two-shot: each rank adds its own piece of all, then all gather the pieces. Exact."""
    parts = cut(x_N, link.size)
    reduce_scatter(link, parts, parts[link.rank], reduction)
    all_gather(link, parts)


def reference_all_to_all(outgoing: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """What each rank receives, from what all ranks send: incoming[r][s] = outgoing[s][r]."""
    ranks = range(len(outgoing))
    return [[outgoing[source][rank].clone() for source in ranks] for rank in ranks]
