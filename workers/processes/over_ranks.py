"""What workers with an engine over several ranks share: founding the group, and when to leave."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeVar

from kernels.collectives.errors import CollectiveError, MismatchedCall
from workers.ranks.founding import GroupSpec
from workers.ranks.group import RankGroup
from workers.ranks.watch import Limits

if TYPE_CHECKING:
    from llm_engine.config import EngineConfig as LLMConfig
    from video_engine.config import EngineConfig as VideoConfig
    from workers.settings import Settings

_logger = logging.getLogger(__name__)
Config = TypeVar("Config", "LLMConfig", "VideoConfig")


def with_threads(config: Config, num_ranks: int) -> Config:
    """The configuration of one rank: without a number of threads, an even share of the CPUs."""
    if config.num_threads is not None:
        return config
    return replace(config, num_threads=max(1, len(os.sched_getaffinity(0)) // num_ranks))


def group_of(
    config: LLMConfig | VideoConfig,
    settings: Settings,
    num_ranks: int,
    command: tuple[str, ...],
    limits: Limits | None = None,
) -> RankGroup:
    """The group of an engine, not started; `command` starts a follower."""
    folder = settings.resolved_data_dir / "run"
    folder.mkdir(parents=True, exist_ok=True)
    spec = GroupSpec(
        num_ranks=num_ranks,
        command=command,
        folder=folder,
        config=asdict(config),
        data_dir=str(settings.resolved_data_dir),
        device=config.device,
        limits=limits or Limits(),
    )
    return RankGroup(spec, on_leader_stalled=end_process)


@contextmanager
def closed_on_error(group: RankGroup) -> Generator[None]:
    """End all ranks where loading fails.

    Raises: GroupLost naming the rank that failed, where an exchange between them did.
    """
    try:
        try:
            yield
        except (CollectiveError, MismatchedCall) as error:
            group.give_up(error)
    except BaseException:
        group.close()
        raise


def end_process(reason: object) -> None:
    """Leave at once: nobody can free a thread that does not move, or bring back lost ranks.

    The deployment starts this worker again.
    """
    _logger.error("this worker ends, since its ranks cannot go on: %s", reason)
    os._exit(1)
