"""Ranks as threads of one process, and a link slowed to a rate: no process, no privilege."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence

import torch

from kernels.collectives.errors import RankStalled
from kernels.collectives.link import Link, Message


class LocalLink:
    """A rank's end of links inside one process. `make_links` makes those of all ranks."""

    def __init__(
        self,
        rank: int,
        boxes: Sequence[Sequence[queue.SimpleQueue[torch.Tensor]]],
        timeout_s: float,
    ) -> None:
        self._rank, self._boxes, self._timeout_s = rank, boxes, timeout_s

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self._boxes)

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        """See `kernels.collectives.link.Link`."""
        if outgoing and len(outgoing.values_N):
            self._boxes[self._rank][outgoing.rank].put(outgoing.values_N.clone())
        if incoming and len(incoming.values_N):
            source = incoming.rank
            try:
                arrived_N = self._boxes[source][self._rank].get(timeout=self._timeout_s)
            except queue.Empty:
                raise RankStalled(
                    f"rank {self._rank} waited {self._timeout_s} s for rank {source}", (source,)
                ) from None
            incoming.values_N.copy_(arrived_N)


def make_links(size: int, timeout_s: float = 30.0) -> list[LocalLink]:
    """One end for each rank; each is used by one thread at a time."""
    boxes = [[queue.SimpleQueue[torch.Tensor]() for _ in range(size)] for _ in range(size)]
    return [LocalLink(rank, boxes, timeout_s) for rank in range(size)]


class LimitedLink:
    """A link slowed to a rate: a message takes at least `latency_s + bytes / rate_bytes_s`.

    It sleeps for what is left, so that the core is free for computation, as with a real link.
    """

    def __init__(self, link: Link, rate_bytes_s: float, latency_s: float = 0.0) -> None:
        self._link, self._rate_bytes_s, self._latency_s = link, rate_bytes_s, latency_s

    @property
    def rank(self) -> int:
        """This rank."""
        return self._link.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._link.size

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        """Both directions at once, each at the rate; as slow as the larger message."""
        begin_s = time.monotonic()
        self._link.exchange(outgoing, incoming)
        moved = [m.values_N.nbytes for m in (outgoing, incoming) if m]
        least_s = self._latency_s + max(moved, default=0) / self._rate_bytes_s
        left_s = least_s - (time.monotonic() - begin_s)
        if left_s > 0:
            time.sleep(left_s)
