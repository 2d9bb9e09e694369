"""Rank 0's denoiser: every forward goes to the other ranks too, and is done again after a loss."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext

from kernels.collectives.errors import CollectiveError, MismatchedCall
from video_engine.models.denoiser import Inputs, Outputs
from video_engine.parallel.command import ForwardCommand
from video_engine.parallel.forward import RankForward
from video_engine.parallel.ranks import Ranks

_logger = logging.getLogger(__name__)
# A first forward of its shape compiles kernels, and nobody knows how long the clip's steps take.
FIRST_FORWARD_S = 1800.0
# Ranks that are lost again and again in the same forward are lost to it: the job should not go on.
_MOST_TRIES = 3


class RankedDenoiser:
    """See `video_engine.models.denoiser.Denoiser`.

    Rank 0 alone holds latents, schedulers and conditioning, and decides when to step or to stop:
    followers keep nothing between forwards, so a forward that ranks were lost in is computed again
    from the same inputs, and the clip comes out the same.
    """

    def __init__(self, forward: RankForward, ranks: Ranks) -> None:
        """`ranks` carry commands, and are brought together again after a loss."""
        self._forward, self._ranks = forward, ranks
        self._usual: tuple[ForwardCommand, float] | None = None
        self._lock = threading.Lock()

    def __call__(self, part: str, shared: Inputs, branches: Sequence[Inputs]) -> list[Outputs]:
        """See the protocol.

        Raises: what `Ranks.renew` raises where the ranks cannot be brought back.
        """
        command = ForwardCommand.of(part, shared, branches)
        with self._lock:
            for tries_left in reversed(range(_MOST_TRIES)):
                try:
                    return self._run(command, shared, branches)
                except (CollectiveError, MismatchedCall) as error:
                    self._renew(error)
                    if not tries_left:
                        raise
                    _logger.warning("a forward of %s is computed again: %s", part, error)
                except Exception as error:
                    # The others wait in an exchange that this rank will never come to.
                    self._renew(error)
                    raise
        raise AssertionError("the last try returns or raises")

    def tend(self) -> None:
        """Between forwards: bring lost ranks back. From any thread. Raises: as `__call__`."""
        if self._ranks.is_broken:
            with self._lock:
                if self._ranks.is_broken:
                    self._renew(None)

    def close(self) -> None:
        """Close the communicators that were joined besides the ranks' own."""
        with self._lock:
            self._forward.close()

    def _run(
        self, command: ForwardCommand, shared: Inputs, branches: Sequence[Inputs]
    ) -> list[Outputs]:
        usual_s = self._usual[1] if self._usual and self._usual[0] == command else None
        begin_s = time.monotonic()
        with nullcontext() if usual_s is not None else self._ranks.window(FIRST_FORWARD_S):
            self._ranks.expect(usual_s)
            self._ranks.send(command.encode())
            outputs = self._forward.lead(command, shared, branches)
        self._usual = command, time.monotonic() - begin_s
        return outputs

    def _renew(self, error: BaseException | None) -> None:
        self._usual = None  # new processes have compiled and touched nothing yet
        self._ranks.renew(self._forward.rejoin, error)
