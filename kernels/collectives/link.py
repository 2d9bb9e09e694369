"""Between two ranks at a time: what the algorithms of several steps are written on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

# Elements: a sum that is called for less costs more than the wait that it fills.
_STEP = 1 << 14


class Following:
    """Work on an incoming message that keeps up with it: on elements [begin, end) as they come.

    Invariants: `act` gets every element once, in order; after `upto` the length it has had all.
    """

    def __init__(self, act: Callable[[int, int], None], length: int) -> None:
        self._act, self._length, self._done = act, length, 0

    def upto(self, end: int) -> None:
        """The elements before `end` are there; what is little waits for more."""
        if end - self._done >= _STEP or self._done < end == self._length:
            begin, self._done = self._done, end
            self._act(begin, end)


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A tensor on its way: to the rank, or from it. Contiguous, one dim; empty ones do not move.

    A link may tell the `following` of an incoming one what is there already, or leave it.
    """

    values_N: torch.Tensor
    rank: int
    following: Following | None = None

    def has_come(self, num_bytes: int) -> None:
        """The first so many bytes of an incoming message are there."""
        if self.following is not None:
            self.following.upto(num_bytes // self.values_N.element_size())


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
