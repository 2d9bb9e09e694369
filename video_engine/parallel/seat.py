"""A rank's seat in a layout: checked, its communicators joined, its transformers taken over."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from kernels.collectives.protocol import Communicator
from kernels.ledger import Ledger
from video_engine.errors import InvalidLayout
from video_engine.models.pipelines import Stock
from video_engine.models.registry import load_transformers
from video_engine.parallel.check import CheckedLayout, check_layout
from video_engine.parallel.decisions import layout_decisions
from video_engine.parallel.forward import RankForward
from video_engine.parallel.group_choice import GroupChoice, choose_groups
from video_engine.parallel.head_exchange import HeadExchange, executor_of
from video_engine.parallel.mesh import JoinPart, Mesh, join_on_host

if TYPE_CHECKING:
    from kernels.ledger import Decision
    from video_engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Seat:
    """What a rank needs before it reads weights; the ledger has what its groups chose."""

    checked: CheckedLayout
    groups: GroupChoice
    mesh: Mesh
    device: torch.device
    ledger: Ledger

    @classmethod
    def take(
        cls, config: EngineConfig, world: Communicator, join_part: JoinPart | None = None
    ) -> Self:
        """Check the layout and join its groups; all ranks at the same time.

        Raises: as `check_layout`; InvalidLayout for another number of ranks.
        """
        checked = check_layout(config)
        group = world.group
        if group.size != checked.layout.num_ranks:
            raise InvalidLayout(
                f"layout {checked.layout} is for {checked.layout.num_ranks} ranks, the group has "
                f"{group.size}"
            )
        device = device_of(config.device, group.rank)
        ledger = Ledger()
        joining = join_part or functools.partial(join_on_host, place=device, ledger=ledger)
        mesh = Mesh(world, checked.layout, joining)
        return cls(checked, choose_groups(checked, device), mesh, device, ledger)

    def forward(self, parts: Mapping[str, Stock]) -> RankForward:
        """Take over transformers: their self-attention meets the other ranks from now on."""
        layout, mesh = self.checked.layout, self.mesh
        exchange = None
        if layout.ulysses > 1:
            num_groups = self.groups.num_groups
            run = executor_of(self.device, num_groups)
            exchange = HeadExchange(
                mesh, self.checked.needs.facts.heads, num_groups, layout.wire, run
            )
        rows = self.checked.family.row_model()
        place = mesh.place.ulysses
        models = {name: rows(part, exchange, layout.ulysses, place) for name, part in parts.items()}
        return RankForward(models, mesh, self.device)

    def decisions(self) -> tuple[Decision, ...]:
        """How the clip is laid over the ranks, and why, for the ledger."""
        return (*layout_decisions(self.checked, self.groups, self.device), *self.ledger)


def device_of(device: str, rank: int) -> torch.device:
    """Where a rank computes: all on the CPU, or each on the accelerator of its number.

    Raises: InvalidLayout for one accelerator that all would have to share.
    """
    asked = torch.device(device)
    if asked.type == "cpu":
        return asked
    if ":" in device:
        raise InvalidLayout(
            f"device {device!r} is one accelerator, which several ranks cannot share: ask for "
            f"{asked.type!r}, so that rank 0 takes the first one, and so on"
        )
    return torch.device(asked.type, rank)


def load_follower(
    config: EngineConfig, world: Communicator, join_part: JoinPart | None = None
) -> RankForward:
    """A follower's part (rank > 0) of the layout in `config.layout`: transformers alone.

    Rank 0 calls `VideoEngine.load(config, ranks)` at the same time.
    Raises: as `Seat.take`; ModelNotFound for missing or damaged weights.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    seat = Seat.take(config, world, join_part)
    return seat.forward(load_transformers(config, str(seat.device)))
