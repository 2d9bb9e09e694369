"""Between two ranks at a time: what the algorithms of several steps are written on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A tensor on its way: to the rank, or from it. Contiguous, one dim; empty ones do not move."""

    values_N: torch.Tensor
    rank: int


class Link(Protocol):
    """Messages between ranks, in order for each pair and direction.

    A rank drives one message out and one in at a time. Raises RankLost, RankStalled, GroupBroken.
    """

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        """Send and receive at once; returns when both buffers may be used again."""
        ...


def send(link: Link, values_N: torch.Tensor, to: int) -> None:
    """Send alone."""
    link.exchange(Message(values_N, to), None)


def receive(link: Link, values_N: torch.Tensor, source: int) -> None:
    """Receive alone, into `values`."""
    link.exchange(None, Message(values_N, source))
