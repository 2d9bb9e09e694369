"""Operations by the push kernel: one-shot, two-shot and their parts, and uneven all-to-all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from kernels.collectives.calls import Reduction
from kernels.collectives.push.layout import rounds_of, word_bytes
from kernels.collectives.push.memory import PushMemory, raise_if_lost
from kernels.collectives.reduction import cut

Parts = Sequence[torch.Tensor]
# Launches of a model's step repeat the same buffers, and a table costs a copy to the device.
_NUM_TABLES = 256


class Pushes:
    """The push operations of a group.

    Tensors are contiguous with one dim and of the same dtype on all ranks, as agreed on the board
    beforehand. Nothing waits for the device. Numerics: sums in the order of the ranks in float32,
    rounded once, whatever the form and however the message is cut.
    Raises (all): RankStalled where an earlier exchange gave a rank up.
    """

    def __init__(self, memory: PushMemory, launch: Callable[..., None]) -> None:
        """`launch` is `kernels.collectives.push.launch:launch`, which needs Triton."""
        self._memory, self._launch = memory, launch
        self._table = functools.lru_cache(maxsize=_NUM_TABLES)(self._make_table)

    def one_shot(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """Everyone writes all of x to everyone and adds all: one step, (N-1) S bytes."""
        all_of_x = [x_N] * self.size
        self._exchange("all_reduce", all_of_x, all_of_x, x_N.nbytes, reduction)

    def two_shot(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """Everyone adds its piece of all and writes it to all: two steps, 2 (N-1)/N S bytes."""
        pieces = cut(x_N, self.size)
        self.reduce_scatter(pieces, pieces[self.rank], reduction)
        self.all_gather(pieces)

    def reduce_scatter(self, parts: Parts, out_N: torch.Tensor, reduction: Reduction) -> None:
        """out = parts[rank] of all ranks; out may be that part."""
        taken = [part_N[:0] for part_N in parts]
        taken[self.rank] = out_N
        self._exchange("reduce_scatter", parts, taken, _longest_bytes(parts), reduction)

    def all_gather(self, parts: Parts) -> None:
        """Fill every part from its rank; parts[rank] is this rank's own."""
        mine = [parts[self.rank]] * self.size
        self._exchange("all_gather", mine, parts, _longest_bytes(parts), None)

    def all_to_all(self, outgoing: Parts, incoming: Parts, longest: int) -> None:
        """outgoing[j] to rank j, incoming[j] from it; `longest` of all messages of all ranks."""
        incoming[self.rank].copy_(outgoing[self.rank])
        longest_bytes = longest * outgoing[0].element_size()
        self._exchange("all_to_all", outgoing, incoming, longest_bytes, None)

    def broadcast(self, x_N: torch.Tensor, root: int) -> None:
        """x of the root in place of x everywhere."""
        none = [x_N[:0]] * self.size
        if root == self.rank:
            sent, taken = [x_N] * self.size, none
        else:
            sent, taken = none, [x_N if rank == root else x_N[:0] for rank in range(self.size)]
        self._exchange("broadcast", sent, taken, x_N.nbytes, None)

    def limit_waits(self, timeout_s: float) -> None:
        """Change how long a wait may last."""
        self._memory.limit_waits(timeout_s)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._memory.group.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._memory.group.size

    def _exchange(
        self,
        doing: str,
        sent: Parts,
        taken: Parts,
        longest_bytes: int,
        reduction: Reduction | None,
    ) -> None:
        """One launch. `longest_bytes` is the same on all ranks and bounds every part."""
        raise_if_lost(self._memory, doing)
        if not longest_bytes:
            return
        self._memory.put_in_order()
        numbers = (_numbers(sent), _numbers(taken))
        self._launch(
            self._memory,
            self._table(numbers[0]),
            self._table(numbers[1]),
            rounds=rounds_of(longest_bytes, self._memory.inbox.slot_bytes),
            word_bytes=word_bytes(number for row in numbers for number in row),
            dtype=sent[0].dtype,
            reduction=reduction,
        )

    def _make_table(self, numbers: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self._memory.state.device)


def _numbers(parts: Parts) -> tuple[int, ...]:
    """Addresses, then bytes; an empty part has no address."""
    addresses = (part_N.data_ptr() if len(part_N) else 0 for part_N in parts)
    return (*addresses, *(part_N.nbytes for part_N in parts))


def _longest_bytes(parts: Parts) -> int:
    return max(part_N.nbytes for part_N in parts)
