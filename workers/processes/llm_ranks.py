"""A language engine over several ranks: this worker is rank 0, the others are its children."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from llm_engine.engine import LLMEngine
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.loading import check_layout
from workers.processes.over_ranks import closed_on_error, group_of, with_threads
from workers.ranks.group import RankGroup

if TYPE_CHECKING:
    from llm_engine.config import EngineConfig
    from workers.settings import Settings

FOLLOWER = (sys.executable, "-m", "workers.ranks")
# A first step compiles kernels and touches every page for the first time.
WARM_UP_S = 600.0


def load_over_ranks(config: EngineConfig, settings: Settings) -> tuple[LLMEngine, RankGroup]:
    """Start the followers of the layout and load the engine together with them, warmed up.

    On devices each rank has one of its own, of those that this process sees.
    Raises: GroupLost naming the rank that failed; LLMError as `LLMEngine.load`.
    """
    num_ranks = check_layout(config).num_ranks
    config = with_threads(config, num_ranks)
    group = group_of(config, settings, num_ranks, FOLLOWER)
    with closed_on_error(group):
        communicator = group.start()
        engine = LLMEngine.load(config, ranks=Ranks(communicator, group, group.expect))
        group.wait_loaded()
        with group.window(WARM_UP_S):
            engine.warm_up()
    return engine, group
