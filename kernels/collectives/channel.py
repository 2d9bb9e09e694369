"""Messages through shared memory: for each ordered pair of ranks a short queue of chunks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from kernels.collectives.board import Board, meet
from kernels.collectives.link import Message
from kernels.collectives.segment import Segment, aligned

CHUNK_BYTES = 256 << 10
# Chunks of a queue: a sender may be this far ahead of its receiver.
DEPTH = 4
_CELLS_BYTES = 128
_RECEIVED_CELL = 8


class _Queue:
    """One direction of one pair; a rank uses one end of it."""

    def __init__(self, segment: Segment, index: int, first_payload: int) -> None:
        self._cells = segment.cells(index * _CELLS_BYTES, _CELLS_BYTES // 8)
        offset = first_payload + index * CHUNK_BYTES * DEPTH
        self._chunks = [
            segment.payload(offset + turn * CHUNK_BYTES, CHUNK_BYTES) for turn in range(DEPTH)
        ]
        self._turn = 0

    def can_push(self) -> bool:
        return self._turn - self._cells[_RECEIVED_CELL] < DEPTH

    def push(self, bytes_B: torch.Tensor) -> None:
        self._chunks[self._turn % DEPTH][: len(bytes_B)].copy_(bytes_B)
        self._turn += 1
        self._cells[0] = self._turn

    def can_pop(self) -> bool:
        return self._cells[0] > self._turn

    def pop_into(self, bytes_B: torch.Tensor) -> None:
        bytes_B.copy_(self._chunks[self._turn % DEPTH][: len(bytes_B)])
        self._turn += 1
        self._cells[_RECEIVED_CELL] = self._turn


class SharedMemoryLink:
    """A `Link` over one segment of the group. The receiver states the size, as the sender does."""

    def __init__(self, board: Board, store: dist.Store) -> None:
        group = board.group
        self._board = board
        num_pairs = group.size * group.size
        first_payload = aligned(num_pairs * _CELLS_BYTES)
        size_bytes = first_payload + num_pairs * CHUNK_BYTES * DEPTH
        segment = Segment(group, store, "channels", size_bytes)
        meet(group, store, "channels")
        segment.forget_name()
        self._out = {
            r: _Queue(segment, group.rank * group.size + r, first_payload) for r in group.others
        }
        self._into = {
            r: _Queue(segment, r * group.size + group.rank, first_payload) for r in group.others
        }

    @property
    def rank(self) -> int:
        """This rank."""
        return self._board.group.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._board.group.size

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        """See `kernels.collectives.link.Link`: chunks go out and come in as each can."""
        out, into = _chunks(outgoing), _chunks(incoming)
        sending = self._out[outgoing.rank] if outgoing and out else None
        receiving = self._into[incoming.rank] if incoming and into else None
        num_bytes = 0
        while out or into:
            moved = False
            if sending and out and sending.can_push():
                sending.push(out.pop())
                moved = True
            if incoming and receiving and into and receiving.can_pop():
                num_bytes += len(into[-1])
                receiving.pop_into(into.pop())
                incoming.has_come(num_bytes)
                moved = True
            if not moved:
                self._wait(
                    sending if out else None, receiving if into else None, outgoing, incoming
                )

    def _wait(
        self,
        sending: _Queue | None,
        receiving: _Queue | None,
        outgoing: Message | None,
        incoming: Message | None,
    ) -> None:
        ranks = {m.rank for m, end in ((outgoing, sending), (incoming, receiving)) if m and end}
        doing = " and ".join(
            f"{verb} rank {m.rank}"
            for verb, m, end in (
                ("sending to", outgoing, sending),
                ("receiving from", incoming, receiving),
            )
            if m and end
        )

        def is_ready() -> bool:
            return bool((sending and sending.can_push()) or (receiving and receiving.can_pop()))

        self._board.wait(is_ready, lambda: tuple(sorted(ranks)), doing)


def _chunks(message: Message | None) -> list[torch.Tensor]:
    """Bytes of a message in pieces, the first one last."""
    if message is None or not len(message.values_N):
        return []
    return list(message.values_N.view(torch.uint8).split(CHUNK_BYTES))[::-1]
