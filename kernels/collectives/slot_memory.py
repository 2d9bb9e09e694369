"""Where the slots of ranks lie, and how a rank knows that the others have written theirs."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from kernels.collectives.board import Board, meet
from kernels.collectives.group import Group
from kernels.collectives.segment import Segment


class SlotMemory(Protocol):
    """Slots of bytes, by rank and turn, that every rank of a group reads.

    Invariant: what a rank wrote to its own slots before a step is seen by all after it.
    """

    @property
    def group(self) -> Group:
        """The ranks."""
        ...

    @property
    def slots(self) -> list[list[torch.Tensor]]:
        """Slots of all ranks, uint8, of equal sizes."""
        ...

    def step(self, doing: str) -> None:
        """Say that this rank has come here, and go on when all have."""
        ...


class HostMemory:
    """Slots in memory of the host; a step is one of the board's."""

    def __init__(self, board: Board, store: dist.Store, *, num_turns: int, slot_bytes: int) -> None:
        """Map them on every rank. Raises: CollectiveError, RankStalled."""
        self._board, self.group = board, board.group
        size = self.group.size
        segment = Segment(self.group, store, "slots", size * num_turns * slot_bytes)
        meet(self.group, store, "slots")
        segment.forget_name()
        self.slots = [
            [
                segment.payload((r * num_turns + t) * slot_bytes, slot_bytes)
                for t in range(num_turns)
            ]
            for r in range(size)
        ]

    def step(self, doing: str) -> None:
        """See `SlotMemory`."""
        self._board.step(doing)
