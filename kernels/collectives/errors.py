"""What can go wrong between ranks.

KernelError
├── ShapeError
│   └── MismatchedCall    ranks called different things: named rank, what it called, what this did
└── CollectiveError
    ├── RankStalled (TimeoutError)   a rank did not come within the time limit; named
    ├── RankLost                     a rank's process is gone; named
    ├── StaleEpoch                   this rank belongs to an older founding of the group
    └── GroupBroken                  the group failed before; found it anew with the next epoch
"""

from __future__ import annotations

from kernels.errors import KernelError, ShapeError


class MismatchedCall(ShapeError):
    """Ranks disagree on the operation, its shape or its dtype; nothing was exchanged."""


class CollectiveError(KernelError):
    """Root of what fails while ranks talk. `ranks` are those to blame, as far as is known."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankStalled(CollectiveError, TimeoutError):
    """A rank is alive and did not come in time; the message says how far it got."""


class RankLost(CollectiveError):
    """A rank's process ended while others waited for it."""


class StaleEpoch(CollectiveError):
    """The group was founded again; this rank's results must be thrown away."""


class GroupBroken(CollectiveError):
    """An earlier call failed: ranks no longer agree where they are."""
