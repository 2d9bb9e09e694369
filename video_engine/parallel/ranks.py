"""The other ranks of an engine, as rank 0's denoiser sees them: injected by who starts them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from kernels.collectives.protocol import Communicator


class Ranks(Protocol):
    """A group of ranks that is founded anew after a loss; rank 0's thread alone calls it."""

    @property
    def communicator(self) -> Communicator:
        """The communicator of all ranks; it outlives foundings."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether ranks are gone, so that `renew` is due."""
        ...

    def send(self, data: bytes) -> None:
        """Hand a command to all followers; may return before anybody has read it.

        Raises: CollectiveError where one of them is known to be gone.
        """
        ...

    def expect(self, duration_s: float | None) -> None:
        """Predict the next command's duration; None: nothing is known of it."""
        ...

    def window(self, bound_s: float) -> AbstractContextManager[None]:
        """Inside it a command may take so long before a rank counts as stalled."""
        ...

    def renew(self, rejoin: Callable[[], None], error: BaseException | None = None) -> None:
        """Bring the ranks together again; `rejoin` is rank 0's part while the others load.

        `error` is what an exchange raised, if that is how the loss was noticed.
        Raises: an error that ends the engine, where they may not be brought back again.
        """
        ...
