"""A communicator that outlives the loss of ranks: its group is founded anew under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch

from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.group import Group
from kernels.collectives.lane import Handle
from kernels.collectives.protocol import Communicator

P = ParamSpec("P")
T = TypeVar("T")


class RenewableCommunicator:
    """A communicator whose group may be founded anew under it: layers keep it, unchanged.

    See `kernels.collectives.protocol.Communicator`; every call goes to the one of the epoch.
    """

    def __init__(self, current: Communicator) -> None:
        self._current = current

    def renew(self, current: Communicator) -> None:
        """From now on, use the communicator of another founding; the old one is not closed."""
        self._current = current

    @property
    def current(self) -> Communicator:
        """The communicator of this epoch."""
        return self._current

    @property
    def group(self) -> Group:
        """See the protocol."""
        return self._current.group

    def all_reduce(
        self,
        x: torch.Tensor,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = "auto",
    ) -> torch.Tensor:
        """See the protocol."""
        return self._current.all_reduce(
            x, contract=contract, reduction=reduction, algorithm=algorithm
        )

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
        return self._current.reduce_scatter(
            x, sizes, contract=contract, reduction=reduction, algorithm=algorithm
        )

    def all_gather(
        self, x: torch.Tensor, *, contract: Contract = "exact", algorithm: str = "auto"
    ) -> torch.Tensor:
        """See the protocol."""
        return self._current.all_gather(x, contract=contract, algorithm=algorithm)

    def all_to_all(
        self,
        x: torch.Tensor,
        sizes: Sequence[int],
        *,
        contract: Contract = "exact",
        algorithm: str = "auto",
    ) -> tuple[torch.Tensor, list[int]]:
        """See the protocol."""
        return self._current.all_to_all(x, sizes, contract=contract, algorithm=algorithm)

    def broadcast(self, x: torch.Tensor, root: int = 0, *, algorithm: str = "auto") -> torch.Tensor:
        """See the protocol."""
        return self._current.broadcast(x, root, algorithm=algorithm)

    def send(self, x: torch.Tensor, to: int) -> None:
        """See the protocol."""
        self._current.send(x, to)

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """See the protocol."""
        return self._current.receive(x, source)

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> torch.Tensor:
        """See the protocol."""
        return self._current.swap(out, to, into, source)

    def barrier(self, timeout_s: float | None = None) -> None:
        """See the protocol."""
        self._current.barrier(timeout_s)

    def start(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """See the protocol; `operation` is a method of this one, which calls the current one's."""
        return self._current.start(operation, *args, **kwargs)

    def close(self) -> None:
        """See the protocol."""
        self._current.close()
