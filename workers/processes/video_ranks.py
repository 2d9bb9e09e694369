"""A video engine over several ranks: this worker is rank 0, the others are its children."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kernels.hardware.host_memory import read_machine_memory
from video_engine.engine import VideoEngine
from video_engine.parallel.check import check_layout, check_memory
from workers.errors import GroupLost
from workers.processes.over_ranks import closed_on_error, end_process, group_of, with_threads
from workers.ranks.group import RankGroup
from workers.ranks.watch import Limits
from workers.settings import parse_device_set

if TYPE_CHECKING:
    from video_engine.config import EngineConfig
    from video_engine.types import Progress, VideoLimits, VideoRequest, VideoResult
    from workers.settings import Settings

FOLLOWER = (sys.executable, "-m", "workers.ranks", "video")
_TEND_S = 0.25
# Steps of a clip are long and few: a machine that is busy for a moment should cost none of them.
_LIMITS = Limits(floor_s=10.0)


class RankedEngine:
    """An engine over ranks as a worker uses it: lost ranks are brought back between jobs, too.

    Where they may not be brought back, the process ends: its job's lease runs out, and the job
    goes to the next worker as after any death.
    """

    def __init__(
        self, engine: VideoEngine, group: RankGroup, end: Callable[[object], None] | None = None
    ) -> None:
        """Take over both; `end` is told why this process has to go."""
        self.group = group
        self._engine = engine
        self._end = end or end_process
        self._closing = threading.Event()
        self._tender = threading.Thread(target=self._tend, name="rank-tender", daemon=True)
        self._tender.start()

    @property
    def limits(self) -> VideoLimits:
        """What the model accepts."""
        return self._engine.limits

    def generate(
        self, request: VideoRequest, *, should_stop: Callable[[], bool]
    ) -> Iterator[Progress | VideoResult]:
        """See `VideoEngine.generate`."""
        try:
            yield from self._engine.generate(request, should_stop=should_stop)
        except GroupLost as error:
            self._end(error)
            raise

    def close(self) -> None:
        """End the tender, then the ranks."""
        self._closing.set()
        self._tender.join()
        self._engine.close()
        self.group.close()

    def _tend(self) -> None:
        while not self._closing.wait(_TEND_S):
            try:
                self._engine.tend()
            except GroupLost as error:
                self._end(error)
                return


def load_over_ranks(
    config: EngineConfig,
    settings: Settings,
    *,
    limits: Limits = _LIMITS,
    command: tuple[str, ...] = FOLLOWER,
) -> tuple[VideoEngine, RankGroup]:
    """Start the followers of the layout and load the engine together with them.

    `command` starts a follower; `limits` say when one counts as stalled.
    Raises: GroupLost naming the rank that failed; VideoError as `VideoEngine.load`.
    """
    devices = parse_device_set(settings.video_devices)
    checked = check_layout(config, len(devices) or None)
    if not devices:
        check_memory(checked, config, read_machine_memory().available_bytes)
    num_ranks = checked.layout.num_ranks
    config = with_threads(config, num_ranks)
    group = group_of(config, settings, num_ranks, command, limits)
    with closed_on_error(group):
        group.start()
        engine = VideoEngine.load(config, group)
        group.wait_loaded()
    return engine, group
