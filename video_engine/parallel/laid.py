"""A model laid over ranks: what rank 0's engine holds of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from video_engine.errors import InvalidLayout
from video_engine.models.registry import load_model
from video_engine.parallel.ranked_denoiser import RankedDenoiser
from video_engine.parallel.seat import Seat

if TYPE_CHECKING:
    from kernels.ledger import Decision
    from video_engine.config import EngineConfig
    from video_engine.models.base import VideoModel
    from video_engine.models.pipelines import Stock
    from video_engine.parallel.mesh import JoinPart
    from video_engine.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Laid:
    """Rank 0's seat, and the denoiser that reaches the others."""

    seat: Seat
    denoiser: RankedDenoiser

    @property
    def text(self) -> str:
        """The layout, as a config has it."""
        return str(self.seat.checked.layout)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """For the ledger."""
        return self.seat.decisions()


def load_laid(
    config: EngineConfig, ranks: Ranks | None, join_part: JoinPart | None = None
) -> tuple[VideoModel, Laid]:
    """The model on rank 0; followers call `load_follower` at the same time.

    Raises: InvalidLayout without ranks, and as `Seat.take`; as `load_model`.
    """
    if ranks is None:
        raise InvalidLayout(
            f"layout is {config.layout!r}, but this engine has no other ranks: `lanewise serve` "
            "starts them; leave layout out for one rank"
        )
    seat = Seat.take(config, ranks.communicator, join_part)
    laid: list[Laid] = []

    def lay(parts: Mapping[str, Stock]) -> RankedDenoiser:
        laid.append(Laid(seat, RankedDenoiser(seat.forward(parts), ranks)))
        return laid[0].denoiser

    return load_model(config, str(seat.device), lay), laid[0]
