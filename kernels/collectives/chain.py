"""Up and down a chain: the exact all-reduce of neighbours.

The sum travels from rank 0 to the last in float32, each rank adding its own values, so its order
is that of the ranks whatever the place of an element; the last rank rounds once and the result
travels back. The message goes in chunks: while one chunk comes down a link, another goes up it.
Cost: (2N - 3 + k) (a + max(S32, S) / (k B)) with k chunks on links that carry both directions at
once; S32 is the message in float32.
"""

from __future__ import annotations

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.link import Link, Message
from kernels.collectives.reduction import accumulator_dtype, extend

CHUNK = 1 << 16


def all_reduce(link: Link, x_N: torch.Tensor, reduction: Reduction, chunk: int = CHUNK) -> None:
    """The result over all ranks in place of x, bit for bit that of every exact form."""
    if link.size > 1 and len(x_N):
        _Chain(link, x_N, reduction, chunk).run()


class _Chain:
    """One rank's part.

    In slot t the link between ranks r and r + 1 carries chunk t - r up and chunk t - (2N - 3 - r)
    down, in one exchange; links of even r move before those of odd r.
    """

    def __init__(self, link: Link, x_N: torch.Tensor, reduction: Reduction, chunk: int) -> None:
        self._link = link
        self._reduction: Reduction = reduction
        self._chunks = list(x_N.split(chunk))
        dtype = accumulator_dtype(x_N.dtype)
        length = len(self._chunks[0])
        # Two, since a chunk waits for its turn while the next one arrives.
        self._partials = [x_N.new_empty(length, dtype=dtype) for _ in range(2)]

    def run(self) -> None:
        rank, last = self._link.rank, self._link.size - 1
        lower = [rank - 1] if rank > 0 else []
        upper = [rank] if rank < last else []
        links = sorted(lower + upper, key=lambda r: r % 2)
        for slot in range(len(self._chunks) + 2 * last - 1):
            for below in links:
                self._exchange(below, slot - below, slot - (2 * last - 1 - below))

    def _exchange(self, below: int, up: int, down: int) -> None:
        """One slot of the link between `below` and the rank above it."""
        is_lower_end = below == self._link.rank
        going_up = self._running(up) if 0 <= up < len(self._chunks) else None
        coming = self._chunks[down] if 0 <= down < len(self._chunks) else None
        if is_lower_end:
            if going_up is not None and self._link.rank == 0:
                going_up.copy_(self._chunks[up])
            self._swap(going_up, coming, below + 1)
            return
        self._swap(coming, going_up, below)
        if going_up is not None:
            extend(going_up, self._chunks[up], self._reduction)
            if self._link.rank == self._link.size - 1:
                self._chunks[up].copy_(going_up)

    def _running(self, index: int) -> torch.Tensor:
        return self._partials[index % 2][: len(self._chunks[index])]

    def _swap(self, out: torch.Tensor | None, into: torch.Tensor | None, peer: int) -> None:
        outgoing = None if out is None else Message(out, peer)
        incoming = None if into is None else Message(into, peer)
        if outgoing or incoming:
            self._link.exchange(outgoing, incoming)
