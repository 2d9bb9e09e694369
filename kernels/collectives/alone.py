"""The communicator of one rank: every exchange is with itself, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch

from kernels.collectives import int8
from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.group import Group
from kernels.collectives.int8 import Movers, Parts
from kernels.collectives.lane import Handle, Lane
from kernels.errors import ShapeError

P = ParamSpec("P")
T = TypeVar("T")


class Alone:
    """See `kernels.collectives.protocol.Communicator`; a layer needs no case for one rank.

    `int8` rounds here too: a model gives the same numbers as with more ranks that hold the same.
    """

    def __init__(self) -> None:
        self.group = Group(rank=0, size=1, rendezvous="file:///alone")
        self._lane = Lane("collectives-alone")
        self._movers = Movers(
            rank=0, size=1, all_to_all=_give_back, all_gather=lambda _: None, overlaps=False
        )

    def all_reduce(
        self,
        x: torch.Tensor,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = "auto",
    ) -> torch.Tensor:
        """See the protocol."""
        if contract == "int8":
            flat_N = x.contiguous().view(-1)
            int8.all_reduce(flat_N, reduction, self._movers)
            x.copy_(flat_N.view(x.shape))
        return x

    def reduce_scatter(
        self,
        x: torch.Tensor,
        sizes: Sequence[int] | None = None,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = "auto",
    ) -> torch.Tensor:
        """See the protocol."""
        self._check_rows(x, sizes)
        return self._moved(x, contract)

    def all_gather(
        self, x: torch.Tensor, *, contract: Contract = "exact", algorithm: str = "auto"
    ) -> torch.Tensor:
        """See the protocol."""
        return self._moved(x, contract)

    def all_to_all(
        self,
        x: torch.Tensor,
        sizes: Sequence[int],
        *,
        contract: Contract = "exact",
        algorithm: str = "auto",
    ) -> tuple[torch.Tensor, list[int]]:
        """See the protocol."""
        self._check_rows(x, sizes)
        return self._moved(x, contract), [len(x)]

    def broadcast(self, x: torch.Tensor, root: int = 0, *, algorithm: str = "auto") -> torch.Tensor:
        """See the protocol."""
        self._check_peer(root)
        return x

    def send(self, x: torch.Tensor, to: int) -> None:
        """There is nobody to send to."""
        raise ShapeError(f"a message to rank {to}: the group has rank 0 alone")

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """There is nobody to receive from."""
        raise ShapeError(f"a message from rank {source}: the group has rank 0 alone")

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> torch.Tensor:
        """A ring of one: what goes out comes in."""
        self._check_peer(to)
        self._check_peer(source)
        return into.copy_(out)

    def barrier(self, timeout_s: float | None = None) -> None:
        """Everyone is here."""

    def start(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """See the protocol."""
        return self._lane.start(lambda: operation(*args, **kwargs))

    def close(self) -> None:
        """See the protocol."""
        self._lane.close()

    def _moved(self, x: torch.Tensor, contract: Contract) -> torch.Tensor:
        moved = x.clone(memory_format=torch.contiguous_format)
        if contract == "int8":
            int8.all_gather([moved.view(-1)], self._movers)
        return moved

    def _check_rows(self, x: torch.Tensor, sizes: Sequence[int] | None) -> None:
        if sizes is not None and list(sizes) != [len(x)]:
            raise ShapeError(f"rows {tuple(sizes)} of a tensor {tuple(x.shape)} for one rank")

    def _check_peer(self, rank: int) -> None:
        if rank != 0:
            raise ShapeError(f"rank {rank}: the group has rank 0 alone")


def _give_back(outgoing: Parts, incoming: Parts) -> None:
    incoming[0].copy_(outgoing[0])
