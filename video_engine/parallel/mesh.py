"""The communicators of a rank: with all ranks, and both ways with those that share its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kernels.collectives.communicator import join
from kernels.collectives.protocol import Communicator
from kernels.ledger import Ledger
from video_engine.errors import InvalidLayout
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.place import Place, sequence_ranks

# A further communicator among some ranks of another's group; every one of them calls it.
JoinPart = Callable[[Communicator, Sequence[int], str], Communicator]


class Mesh:
    """Whom a rank exchanges tensors with. All ranks open theirs at the same time.

    `everyone` is among all ranks; `arrive` and `leave` are among those that share tokens: two,
    since what is exchanged at the same time needs a communicator each.
    """

    def __init__(self, world: Communicator, layout: VideoLayout, join_part: JoinPart) -> None:
        """Join what the layout needs besides the world."""
        self.layout, self.everyone = layout, world
        self.place = Place.of(layout, world.group.rank)
        self._join_part = join_part
        self._joined: list[Communicator] = []
        self._open()

    def renew(self) -> None:
        """Join the same groups anew, in a world that was founded anew."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close what was joined; the world stays its owner's."""
        for communicator in self._joined:
            communicator.close()
        self._joined.clear()

    def _open(self) -> None:
        group = self.everyone.group
        mine = sequence_ranks(self.layout, group.rank)
        self.arrive = self.leave = self.everyone
        if self.layout.ulysses > 1:
            self.arrive = self._join(mine, "arrive")
            if len(mine) < group.size:
                self.leave = self._join(mine, "leave")

    def _join(self, ranks: Sequence[int], name: str) -> Communicator:
        self._joined.append(self._join_part(self.everyone, ranks, name))
        return self._joined[-1]


def join_on_host(
    world: Communicator,
    ranks: Sequence[int],
    name: str,
    *,
    place: torch.device,
    ledger: Ledger,
) -> Communicator:
    """Found a group of some ranks of a host's group, beside its own rendezvous file.

    `place` is where this rank's tensors are; the ledger is told what is chosen.
    Raises: InvalidLayout where the ranks meet over tcp, whose one port serves one group; as
        `kernels.collectives.communicator.join`.
    """
    group = world.group
    if not group.rendezvous.startswith("file:"):
        raise InvalidLayout(
            f"the ranks meet at {group.rendezvous}, but a layout's ranks meet in further groups: "
            "give a rendezvous file:///path, beside which they can"
        )
    return join(
        replace(
            group,
            rank=list(ranks).index(group.rank),
            size=len(ranks),
            rendezvous=f"{group.rendezvous}-{name}-{ranks[0]}",
            islands=(),
        ),
        place=place,
        ledger=ledger,
    )
