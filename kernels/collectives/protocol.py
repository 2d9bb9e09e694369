"""The communicator as its users see it: what engines write their layers against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

import torch

from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.group import Group
from kernels.collectives.lane import Handle

P = ParamSpec("P")
T = TypeVar("T")


class Communicator(Protocol):
    """Exchanges between the ranks of a group; every rank makes the same calls in the same order.

    Contracts: `exact` (default) adds in rank order in float32 and rounds once: the same bits in
    every run, on every rank, however the message is cut and whichever algorithm runs. `fast` is
    the library's. `int8` sends blocks of 128 values; ranks stay identical, numbers change.
    Dtypes: float32, bfloat16, float16 and int64 (int8 and uint8 where nothing is added).
    Raises (all): MismatchedCall before anything moves, naming rank, call and expected call;
    RankStalled and RankLost naming the rank, within the time limit of the group; GroupBroken
    afterwards, until the group is founded anew; ImplUnavailable for an algorithm asked for by
    name that cannot serve.
    """

    @property
    def group(self) -> Group:
        """This rank's group."""
        ...

    def all_reduce(
        self,
        x: torch.Tensor,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = "auto",
    ) -> torch.Tensor:
        """The sum or maximum over all ranks, written to x, which is returned."""
        ...

    def reduce_scatter(
        self,
        x: torch.Tensor,
        sizes: Sequence[int] | None = None,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = "auto",
    ) -> torch.Tensor:
        """Rows of the sum over all ranks: rank r gets sizes[r] of dim 0, nearly equal unless said.

        Shapes: x (R, ...) on all ranks; returns (sizes[rank], ...).
        """
        ...

    def all_gather(
        self, x: torch.Tensor, *, contract: Contract = "exact", algorithm: str = "auto"
    ) -> torch.Tensor:
        """The rows of all ranks joined along dim 0; ranks may hold different numbers of them."""
        ...

    def all_to_all(
        self,
        x: torch.Tensor,
        sizes: Sequence[int],
        *,
        contract: Contract = "exact",
        algorithm: str = "auto",
    ) -> tuple[torch.Tensor, list[int]]:
        """sizes[j] rows of dim 0 to rank j, in order of ranks.

        Returns: the rows from all ranks in order, and how many came from each.
        """
        ...

    def broadcast(self, x: torch.Tensor, root: int = 0, *, algorithm: str = "auto") -> torch.Tensor:
        """x of the root, written to x everywhere."""
        ...

    def send(self, x: torch.Tensor, to: int) -> None:
        """Send x; the receiver has to expect this shape and dtype."""
        ...

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """What the rank sends next to this one, written to x."""
        ...

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> torch.Tensor:
        """Send and receive at once, as rings do: two ranks may swap without waiting in a circle."""
        ...

    def barrier(self, timeout_s: float | None = None) -> None:
        """Return when every rank has come; RankStalled names those that did not."""
        ...

    def start(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Carry out one of the methods above in the background, behind what was issued before."""
        ...

    def close(self) -> None:
        """Give everything back; nothing may be called afterwards."""
        ...
