"""How rank 0's engine reaches the other ranks: an injected way to send, and the communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kernels.collectives.protocol import Communicator


class Commands(Protocol):
    """Carries commands to all followers, in order."""

    def send(self, data: bytes) -> None:
        """Hand a command over; may return before anybody has read it.

        Raises: an error of its own where a follower is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """What an engine on rank 0 is given: all ranks' communicator, and the way to the others.

    `expect` hears before each step how long it should take, in seconds; None where nobody knows.
    """

    communicator: Communicator
    commands: Commands
    expect: Callable[[float | None], None] = lambda _: None


class RenewableRanks(Protocol):
    """The other ranks of an engine, as its loop sees them."""

    @property
    def is_broken(self) -> bool:
        """Whether ranks are gone, so that `renew` is due."""
        ...

    def renew(self, rejoin: Callable[[], None], error: BaseException | None = None) -> None:
        """Bring ranks with empty caches together under the next epoch.

        `rejoin` carries out this rank's part while the others load; `error` is what an exchange
        raised, if that is how the loss was noticed.
        Raises: an error that ends the engine, where they may not be brought back again.
        """
        ...
