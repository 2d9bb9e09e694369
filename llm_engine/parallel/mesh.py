"""The communicators of a rank along the axes of a layout, each group joined once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch

from kernels.collectives.alone import Alone
from kernels.collectives.communicator import join
from kernels.collectives.protocol import Communicator
from kernels.collectives.renewable import RenewableCommunicator
from kernels.ledger import Ledger
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.place import Place

# A communicator among some ranks of another's group; every one of them calls it.
JoinPart = Callable[[Communicator, tuple[int, ...]], Communicator]
_AXES = ("tp", "cp", "dp", "unit", "peers", "rows")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Whom a rank exchanges with in one phase.

    tp, cp and dp: along those axes; unit: the ranks of one tp x cp grid, with dp of all grids of a
    stage; peers: all that share the rank's layers and rows; rows: those at its place that have
    other rows, along dp and cp; world: all. `before` and `after` are the world ranks at the same
    place of the neighbouring stages.
    """

    place: Place
    tp: Communicator
    cp: Communicator
    dp: Communicator
    unit: Communicator
    peers: Communicator
    rows: Communicator
    world: Communicator
    before: int | None
    after: int | None


class Groups:
    """The groups that a rank has joined, by their ranks; phases share them."""

    def __init__(self, world: Communicator, join_part: JoinPart) -> None:
        """Nothing is joined yet."""
        self._world = world
        self._join_part = join_part
        self._joined: dict[tuple[int, ...], Communicator] = {}

    def meshes(self, layouts: PhaseLayouts) -> tuple[Mesh, Mesh]:
        """Those of both phases. All ranks call this at the same time."""
        rank = self._world.group.rank
        wanted = {
            axis_ranks(layout, rank, axis)
            for layout in (layouts.prefill, layouts.decode)
            for axis in _AXES
        }
        # In one order on all ranks, so that no two wait for each other in different groups.
        for ranks in sorted(wanted):
            self._join(ranks)
        return self._mesh(layouts.prefill), self._mesh(layouts.decode)

    def renew(self) -> None:
        """Join the same groups anew, in a world that was founded anew; meshes stay as they are.

        The new followers call `meshes` at the same time.
        """
        for ranks, communicator in sorted(self._joined.items()):
            if isinstance(communicator, RenewableCommunicator) and communicator is not self._world:
                communicator.close()
                communicator.renew(self._join_part(self._world, ranks))

    def close(self) -> None:
        """Close what was joined; the world stays its owner's."""
        for communicator in self._joined.values():
            if communicator is not self._world:
                communicator.close()
        self._joined.clear()

    def _mesh(self, layout: Layout) -> Mesh:
        rank = self._world.group.rank
        along = (self._joined[axis_ranks(layout, rank, axis)] for axis in _AXES)
        tp, cp, dp, unit, peers, rows = along
        place = Place.of(layout, rank)
        return Mesh(
            place=place,
            tp=tp,
            cp=cp,
            dp=dp,
            unit=unit,
            peers=peers,
            rows=rows,
            world=self._world,
            before=rank - layout.stage if place.pp > 0 else None,
            after=rank + layout.stage if place.pp < layout.pp - 1 else None,
        )

    def _join(self, ranks: tuple[int, ...]) -> None:
        if ranks in self._joined:
            return
        if len(ranks) == 1:
            self._joined[ranks] = Alone()
        elif len(ranks) == self._world.group.size:
            self._joined[ranks] = self._world
        else:
            self._joined[ranks] = RenewableCommunicator(self._join_part(self._world, ranks))


def axis_ranks(layout: Layout, rank: int, axis: str) -> tuple[int, ...]:
    """The ranks that a rank exchanges with along an axis, itself included, in order."""
    mine = Place.of(layout, rank)

    def is_along(other: Place) -> bool:
        if other.pp != mine.pp:
            return False
        if axis == "peers":
            return (other.dp, other.cp) == (mine.dp, mine.cp)
        if other.replica != mine.replica:
            return False
        if axis == "unit":
            return True
        is_same_tp, is_same_cp = other.tp == mine.tp, other.cp == mine.cp
        if axis == "rows":
            return is_same_tp
        if axis == "dp":
            return is_same_tp and is_same_cp
        return other.dp == mine.dp and (is_same_cp if axis == "tp" else is_same_tp)

    ranks: Iterable[int] = range(layout.num_ranks)
    return tuple(other for other in ranks if is_along(Place.of(layout, other)))


def joins_parts(place: torch.device, ledger: Ledger) -> JoinPart:
    """`join_part` for ranks whose tensors are on a device; the ledger is told what is chosen."""
    return partial(join_part, place=place, ledger=ledger)


def join_part(
    world: Communicator,
    ranks: tuple[int, ...],
    *,
    place: torch.device | None = None,
    ledger: Ledger | None = None,
) -> Communicator:
    """Found a group of some ranks of a host's group, beside its own rendezvous file.

    `place` is where this rank's tensors are, the CPU without one.
    Raises: InvalidConfig where the ranks meet over tcp, whose one port serves one group; as
        `kernels.collectives.communicator.join`.
    """
    group = world.group
    if not group.rendezvous.startswith("file:"):
        raise InvalidConfig(
            f"the ranks meet at {group.rendezvous}, but a layout with several axes needs a "
            "rendezvous file:///path, beside which its groups meet"
        )
    name = "-".join(map(str, ranks))
    return join(
        replace(
            group,
            rank=ranks.index(group.rank),
            size=len(ranks),
            rendezvous=f"{group.rendezvous}-ranks-{name}",
            islands=(),
        ),
        place=place or torch.device("cpu"),
        ledger=ledger,
    )
