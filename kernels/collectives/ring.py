"""Around a ring: every rank talks to its two neighbours only, so each link carries one stream.

`all_gather` moves values and is exact. `all_reduce` and `reduce_scatter` add as pieces pass by:
the order of a sum depends on where its piece lies, and each hop rounds. They keep the `fast`
contract alone; `kernels.collectives.chain` is the exact form for neighbours.
Cost: all_reduce 2 (N-1) a + 2 (N-1)/N S/B.
Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.link import Following, Link, Message
from kernels.collectives.reduction import cut


def all_gather(link: Link, parts: Sequence[torch.Tensor]) -> None:
    """Fill every part from its rank; parts[rank] is this rank's own."""
    right, left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    for step in range(link.size - 1):
        out = parts[(link.rank - step) % link.size]
        into = parts[(link.rank - step - 1) % link.size]
        link.exchange(Message(out, right), Message(into, left))


def reduce_scatter(link: Link, parts: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """The result of parts[rank] over all ranks, in place; the other parts are used up."""
    right, left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    longest = max(len(part_N) for part_N in parts)
    arrived_N = parts[0].new_empty(longest)
    for step in range(link.size - 1):
        out = parts[(link.rank - step - 1) % link.size]
        into = parts[(link.rank - step - 2) % link.size]
        received_N = arrived_N[: len(into)]
        summing = Following(_extension(into, received_N, reduction), len(into))
        link.exchange(Message(out, right), Message(received_N, left, summing))
        summing.upto(len(into))


def _extension(
    total_N: torch.Tensor, received_N: torch.Tensor, reduction: Reduction
) -> Callable[[int, int], None]:
    """Brings a piece of what was received into the total."""
    combine = torch.add if reduction == "sum" else torch.maximum

    def extend(begin: int, end: int) -> None:
        piece_N = total_N[begin:end]
        combine(piece_N, received_N[begin:end], out=piece_N)

    return extend


def all_reduce(link: Link, x_N: torch.Tensor, reduction: Reduction) -> None:
    """The result over all ranks in place of x."""
    parts = cut(x_N, link.size)
    reduce_scatter(link, parts, reduction)
    all_gather(link, parts)


def reference_all_reduce(
    shards: Sequence[torch.Tensor], reduction: Reduction = "sum"
) -> list[torch.Tensor]:
    """What the ring gives every rank, from the shards of all: piece p is added up from rank p+1."""
    size = len(shards)
    pieces = [cut(shard, size) for shard in shards]
    results: list[torch.Tensor] = []
    for piece in range(size):
        total_N = pieces[(piece + 1) % size][piece].clone()
        for hop in range(2, size + 1):
            mine_N = pieces[(piece + hop) % size][piece]
            total_N = mine_N + total_N if reduction == "sum" else torch.maximum(mine_N, total_N)
        results.append(total_N)
    return [torch.cat(results) for _ in shards]
