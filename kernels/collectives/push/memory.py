"""Inboxes of ranks, as the push kernel needs them: where they lie, and who is to blame."""

from __future__ import annotations

from typing import Protocol

import torch

from kernels.collectives.errors import RankStalled
from kernels.collectives.group import Group
from kernels.collectives.push.layout import Inbox


class PushMemory(Protocol):
    """The inboxes of a group, zeroed before anybody writes, and this rank's own state.

    `addresses` (ranks,) and `state` (1 + CHANNELS,) int64 lie where the kernel runs; `notice`
    (1,) int64 lies in host memory that the kernel writes to: 0, or who is to blame, from 1.
    `max_polls` bounds how often a flag is looked at.
    """

    @property
    def group(self) -> Group:
        """The ranks."""
        ...

    @property
    def inbox(self) -> Inbox:
        """Sizes, alike on all ranks."""
        ...

    @property
    def addresses(self) -> torch.Tensor:
        """Where each rank's inbox is mapped in this process."""
        ...

    @property
    def state(self) -> torch.Tensor:
        """Who is to blame, and every channel's epoch."""
        ...

    @property
    def notice(self) -> torch.Tensor:
        """Who is to blame, for the host."""
        ...

    @property
    def max_polls(self) -> int:
        """How often a flag is looked at before its rank is given up."""
        ...

    def limit_waits(self, timeout_s: float) -> None:
        """Change how long a flag may be waited for."""
        ...

    def put_in_order(self) -> None:
        """Make what is launched next run behind all that was launched before."""
        ...


def raise_if_lost(memory: PushMemory, doing: str) -> None:
    """What the kernels of earlier exchanges have noticed.

    Raises: RankStalled naming the rank whose flag did not come; the group cannot be used again.
    """
    blame = int(memory.notice[0])
    if blame == 0:
        return
    rank, group = blame - 1, memory.group
    raise RankStalled(
        f"{doing}: an exchange before it gave rank {rank} up on rank {group.rank} after "
        f"{memory.max_polls} looks at its flag; its results are not complete. Found the group "
        f"anew with epoch {group.epoch + 1}",
        (rank,),
    )
