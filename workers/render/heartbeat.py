"""Keeps a running job's lease in a thread of its own and hears whether to stop."""

from __future__ import annotations

import logging
import threading
import time
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from workers.protocol import JobProgress
    from workers.store.values import Claim, JobQueue

_logger = logging.getLogger(__name__)
_MIN_GAP_S = 0.25


class StopReason(StrEnum):
    """Why a job has to stop at its next border."""

    CANCELLED = "cancelled"
    LOST = "lost"


class Heartbeat:
    """A context in which the claim's lease is renewed.

    Writes every `beat_s`, and sooner for new progress, at most four times a second. A lease that
    could not be renewed for its whole length counts as lost: somebody else may hold the job.
    """

    def __init__(self, jobs: JobQueue, claim: Claim, *, lease_s: float, beat_s: float) -> None:
        """Renew `claim` in `jobs`, each time for `lease_s`."""
        self._jobs = jobs
        self._claim = claim
        self._lease_s = lease_s
        self._beat_s = beat_s
        self._progress: JobProgress | None = None
        self._is_dirty = False
        self._is_over = False
        self._changed = threading.Condition()
        self._reason: StopReason | None = None
        self._renewed_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the thread; no write happens afterwards."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why to stop, or None to go on."""
        return self._reason

    def report(self, progress: JobProgress) -> None:
        """Hand over progress; it is written by the thread, soon."""
        with self._changed:
            self._progress = progress
            self._is_dirty = True
            self._changed.notify()

    def _run(self) -> None:
        beaten_s = time.monotonic()
        while self._wait_until_due(beaten_s):
            beaten_s = time.monotonic()
            self._beat()

    def _wait_until_due(self, beaten_s: float) -> bool:
        with self._changed:
            while not self._is_over:
                gap_s = _MIN_GAP_S if self._is_dirty else self._beat_s
                wait_s = beaten_s + gap_s - time.monotonic()
                if wait_s <= 0:
                    self._is_dirty = False
                    return True
                self._changed.wait(wait_s)
        return False

    def _beat(self) -> None:
        started_s = time.monotonic()
        try:
            beat = self._jobs.heartbeat(self._claim, self._lease_s, self._progress)
        except SQLAlchemyError as error:
            _logger.warning("heartbeat of %s failed: %s", self._claim.job_id, error)
            if time.monotonic() - self._renewed_s > self._lease_s:
                self._reason = StopReason.LOST
            return
        if not beat.held:
            self._reason = StopReason.LOST
            return
        self._renewed_s = started_s
        if beat.cancel_requested and self._reason is None:
            self._reason = StopReason.CANCELLED
