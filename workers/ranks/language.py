"""What a follower of a language engine does with its commands: a step's share each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_engine.config import EngineConfig
from llm_engine.parallel.executor import load_rank
from llm_engine.parallel.step_command import StepCommand

if TYPE_CHECKING:
    from kernels.collectives.protocol import Communicator
    from workers.ranks.follower import Execute
    from workers.ranks.order import RankOrder


def load_language(order: RankOrder, communicator: Communicator) -> Execute:
    """Read this rank's share of the model.

    Raises: as `llm_engine.parallel.executor.load_rank`.
    """
    executor = load_rank(EngineConfig(**order.config), communicator)

    def run(data: bytes) -> None:
        executor.execute(StepCommand.decode(data))
        executor.wait()  # the rank says that a step is done once its device has done it

    return run
