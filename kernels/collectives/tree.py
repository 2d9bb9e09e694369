"""From one rank to all, doubling those who know in each round: ceil(log2 N) rounds."""

from __future__ import annotations

import torch

from kernels.collectives.link import Link, receive, send


def broadcast(link: Link, x_N: torch.Tensor, root: int) -> None:
    """x of the root in place of x everywhere."""
    place = (link.rank - root) % link.size
    distance = 1
    while distance < link.size:
        if place < distance:
            if place + distance < link.size:
                send(link, x_N, (link.rank + distance) % link.size)
        elif place < 2 * distance:
            receive(link, x_N, (link.rank - distance) % link.size)
        distance *= 2
