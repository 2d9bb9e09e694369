"""Operations through slots that all ranks read: one-shot, two-shot and their parts.

Every rank has an input slot and a result slot of two turns each. Values of a round go to the input
slot, a step of the memory makes them visible, and each rank reads what it needs before its next
step. Two turns are enough: whoever writes turn t again has passed a step that all reached after
they had read it, for between two writes of inputs, and of results, there always is a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.reduction import combine_into, combine_twice, cut
from kernels.collectives.slot_memory import SlotMemory

# A short round stays in the caches; a long one has fewer steps, each of which waits for ranks that
# may not be running. 8 MiB on two busy cores took a third less time with 2 MiB than with 1 MiB.
SLOT_BYTES = 2 << 20
NUM_TURNS = 4
_RESULTS = 2
_ALIGNED_BYTES = 64


class Slots:
    """The slots of a group. A slot's bytes bound a round; longer messages take several.

    Tensors are contiguous with one dim and of the same dtype and sizes on all ranks, as agreed on
    the board beforehand.
    """

    def __init__(self, memory: SlotMemory) -> None:
        """Over slots of `NUM_TURNS` turns."""
        self._memory = memory
        self.slot_bytes = memory.slots[0][0].numel()
        self._views: dict[torch.dtype, list[list[torch.Tensor]]] = {}
        self._turn = 0
        self._result_turn = 0

    def one_shot(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """Everyone publishes all of x, everyone adds all: one step, N reads."""
        capacity = self._capacity(x_N.dtype, 1)
        for part_N in (x_N,) if x_N.numel() <= capacity else x_N.split(capacity):
            slots, count = self._next_inputs(x_N.dtype), part_N.numel()
            slots[self._rank][:count].copy_(part_N)
            self._memory.step("all_reduce")
            parts = [slot[:count] for slot in slots]
            parts[self._rank] = part_N
            combine_into(part_N, parts, reduction)

    def two_shot(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """Everyone adds its own piece of all and publishes it: 2 (N-1)/N reads.

        Between two steps a rank takes the results of one round, adds up the next and publishes
        the one after it, so n rounds take n + 1 steps.
        """
        stride = self._capacity(x_N.dtype, self._size)
        capacity = stride * self._size
        chunks = (x_N,) if x_N.numel() <= capacity else x_N.split(capacity)
        rounds = [cut(chunk_N, self._size) for chunk_N in chunks]
        inputs = self._publish(rounds[0], stride)
        taken: list[torch.Tensor] = []
        for index, pieces in enumerate(rounds):
            self._memory.step("all_reduce")
            if index:
                self._take(rounds[index - 1], taken)
            taken = self._next_results(x_N.dtype)
            mine_N = pieces[self._rank]
            result_N = taken[self._rank][: len(mine_N)]
            combine_twice(result_N, mine_N, self._parts(inputs, mine_N, stride), reduction)
            if index + 1 < len(rounds):
                inputs = self._publish(rounds[index + 1], stride)
        self._memory.step("all_reduce")
        self._take(rounds[-1], taken)

    def reduce_scatter(
        self, parts: Sequence[torch.Tensor], out_N: torch.Tensor, reduction: Reduction
    ) -> None:
        """out = parts[rank] of all ranks."""
        stride = self._capacity(out_N.dtype, self._size)
        for begin in range(0, max(map(len, parts)), stride):
            pieces = [part_N[begin : begin + stride] for part_N in parts]
            inputs = self._publish(pieces, stride)
            self._memory.step("reduce_scatter")
            found = self._parts(inputs, pieces[self._rank], stride)
            combine_into(out_N[begin : begin + stride], found, reduction)

    def all_gather(self, parts: Sequence[torch.Tensor]) -> None:
        """Fill every part from its rank; parts[rank] is this rank's own."""
        stride = self._capacity(parts[0].dtype, 1)
        for begin in range(0, max(map(len, parts)), stride):
            pieces = [part_N[begin : begin + stride] for part_N in parts]
            slots = self._next_inputs(parts[0].dtype)
            slots[self._rank][: len(pieces[self._rank])].copy_(pieces[self._rank])
            self._memory.step("all_gather")
            for rank in self._others:
                pieces[rank].copy_(slots[rank][: len(pieces[rank])])

    def all_to_all(
        self,
        outgoing: Sequence[torch.Tensor],
        incoming: Sequence[torch.Tensor],
        longest: int,
    ) -> None:
        """outgoing[j] to rank j, incoming[j] from it; `longest` of all messages of all ranks."""
        incoming[self._rank].copy_(outgoing[self._rank])
        stride = self._capacity(outgoing[0].dtype, self._size)
        for begin in range(0, longest, stride):
            pieces = [part_N[begin : begin + stride] for part_N in outgoing]
            slots = self._publish(pieces, stride)
            self._memory.step("all_to_all")
            for rank in self._others:
                target = incoming[rank][begin : begin + stride]
                at = self._rank * stride
                target.copy_(slots[rank][at : at + len(target)])

    def broadcast(self, x_N: torch.Tensor, root: int) -> None:
        """x of the root in place of x everywhere."""
        for part_N in x_N.split(self._capacity(x_N.dtype, 1)):
            slot = self._next_inputs(x_N.dtype)[root][: len(part_N)]
            if root == self._rank:
                slot.copy_(part_N)
            self._memory.step("broadcast")
            if root != self._rank:
                part_N.copy_(slot)

    @property
    def _rank(self) -> int:
        return self._memory.group.rank

    @property
    def _size(self) -> int:
        return self._memory.group.size

    @property
    def _others(self) -> tuple[int, ...]:
        return self._memory.group.others

    def _capacity(self, dtype: torch.dtype, num_pieces: int) -> int:
        """Elements of each of `num_pieces` in a slot, every piece on a cache line of its own."""
        piece_bytes = self.slot_bytes // num_pieces // _ALIGNED_BYTES * _ALIGNED_BYTES
        return piece_bytes // dtype.itemsize

    def _next_inputs(self, dtype: torch.dtype) -> list[torch.Tensor]:
        self._turn = 1 - self._turn
        return self._typed(dtype)[self._turn]

    def _next_results(self, dtype: torch.dtype) -> list[torch.Tensor]:
        self._result_turn = 1 - self._result_turn
        return self._typed(dtype)[_RESULTS + self._result_turn]

    def _typed(self, dtype: torch.dtype) -> list[list[torch.Tensor]]:
        """Every rank's slot of each turn, in a dtype; views cost more than a small copy."""
        if dtype not in self._views:
            self._views[dtype] = [
                [slots[turn].view(dtype) for slots in self._memory.slots]
                for turn in range(NUM_TURNS)
            ]
        return self._views[dtype]

    def _publish(self, pieces: Sequence[torch.Tensor], stride: int) -> list[torch.Tensor]:
        """Write the others' pieces to this rank's slot; all ranks' slots of this turn."""
        slots = self._next_inputs(pieces[0].dtype)
        mine = slots[self._rank]
        for rank in self._others:
            mine[rank * stride :][: len(pieces[rank])].copy_(pieces[rank])
        return slots

    def _parts(
        self, slots: Sequence[torch.Tensor], mine_N: torch.Tensor, stride: int
    ) -> list[torch.Tensor]:
        """This rank's piece as every rank holds it."""
        at = self._rank * stride
        parts = [slot[at : at + len(mine_N)] for slot in slots]
        parts[self._rank] = mine_N
        return parts

    def _take(self, pieces: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Copy what the others have added up."""
        for rank in self._others:
            pieces[rank].copy_(results[rank][: len(pieces[rank])])
