"""A link slowed to a rate inside the process, where the system offers no way to slow a real one."""

from __future__ import annotations

import time

from kernels.collectives.link import Link, Message


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
