"""What a follower of a video engine does with its commands: its share of each forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from video_engine.config import EngineConfig
from video_engine.parallel.seat import load_follower

if TYPE_CHECKING:
    from kernels.collectives.protocol import Communicator
    from workers.ranks.follower import Execute
    from workers.ranks.order import RankOrder


def load_video(order: RankOrder, communicator: Communicator) -> Execute:
    """Read the transformers of the model, and nothing else of it.

    Raises: as `video_engine.parallel.seat.load_follower`.
    """
    return load_follower(EngineConfig(**order.config), communicator).follow
