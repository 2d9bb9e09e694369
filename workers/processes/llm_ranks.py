"""A language engine over several ranks: this worker is rank 0, the others are its children."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from kernels.collectives.errors import CollectiveError, MismatchedCall
from llm_engine.engine import LLMEngine
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.loading import check_layout
from workers.ranks.founding import GroupSpec
from workers.ranks.group import RankGroup

if TYPE_CHECKING:
    from llm_engine.config import EngineConfig
    from workers.ranks.verdict import Verdict
    from workers.settings import Settings

_logger = logging.getLogger(__name__)
FOLLOWER = (sys.executable, "-m", "workers.ranks")
# A first step compiles kernels and touches every page for the first time.
WARM_UP_S = 600.0


def load_over_ranks(config: EngineConfig, settings: Settings) -> tuple[LLMEngine, RankGroup]:
    """Start the followers of the layout and load the engine together with them, warmed up.

    Without a number of threads, the ranks share the machine's processors evenly. On devices each
    has one of its own, of those that this process sees.
    Raises: GroupLost naming the rank that failed; LLMError as `LLMEngine.load`.
    """
    num_ranks = check_layout(config).num_ranks
    if config.num_threads is None:
        num_threads = max(1, len(os.sched_getaffinity(0)) // num_ranks)
        config = replace(config, num_threads=num_threads)
    folder = settings.resolved_data_dir / "run"
    folder.mkdir(parents=True, exist_ok=True)
    spec = GroupSpec(
        num_ranks=num_ranks,
        command=FOLLOWER,
        folder=folder,
        config=asdict(config),
        data_dir=str(settings.resolved_data_dir),
        device=config.device,
    )
    group = RankGroup(spec, on_leader_stalled=_end_process)
    with _closed_on_error(group):
        communicator = group.start()
        ranks = Ranks(communicator, group, group.expect)
        try:
            engine = LLMEngine.load(config, ranks=ranks)
            group.wait_loaded()
            with group.window(WARM_UP_S):
                engine.warm_up()
        except (CollectiveError, MismatchedCall) as error:
            group.give_up(error)
    return engine, group


@contextmanager
def _closed_on_error(group: RankGroup) -> Generator[None]:
    try:
        yield
    except BaseException:
        group.close()
        raise


def _end_process(verdict: Verdict) -> None:
    """Nobody can free a thread that does not move; the deployment starts this worker again."""
    _logger.error("this worker ends, since its own rank stalled: %s", verdict)
    os._exit(1)
