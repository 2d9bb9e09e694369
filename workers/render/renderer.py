"""One video job on a worker: claim, render, write, finish."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from video_engine.errors import Interrupted
from video_engine.types import Progress, VideoLimits, VideoRequest, VideoResult
from workers.protocol import Artifact, WorkerState
from workers.render.heartbeat import Heartbeat, StopReason
from workers.render.job_input import video_request
from workers.render.job_output import failure_of, media_type_of, retry_on_database_trouble
from workers.render.progress import ProgressReport
from workers.store.artifacts import job_path
from workers.store.values import Cancelled, Failed, Outcome, Succeeded

if TYPE_CHECKING:
    from workers.drain import Drain
    from workers.presence import Presence
    from workers.store import Store
    from workers.store.values import Claim

_logger = logging.getLogger(__name__)


class RenderEngine(Protocol):
    """The part of the video engine that a worker uses."""

    @property
    def limits(self) -> VideoLimits:
        """What the model accepts."""
        ...

    def generate(
        self, request: VideoRequest, *, should_stop: Callable[[], bool]
    ) -> Iterator[Progress | VideoResult]:
        """Progress events, then the result."""
        ...


class ClipWriter(Protocol):
    """Writes a result as files of a folder."""

    def __call__(
        self,
        result: VideoResult,
        folder: Path,
        *,
        save_frames: bool,
        should_stop: Callable[[], bool],
    ) -> list[Path]:
        """The files, in the order they are shown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderPlace:
    """Where a worker works: whom it serves, as whom, and with which lease."""

    model: str
    worker: str
    scratch: Path
    lease_s: float
    beat_s: float
    max_crashes: int


class Renderer:
    """Runs jobs of one model, one at a time; `run` never raises.

    Invariants: what a stale or stopped attempt wrote is deleted; a job of a worker that drains
    goes back to the queue and the attempt does not count.
    """

    def __init__(
        self,
        engine: RenderEngine,
        write: ClipWriter,
        store: Store,
        place: RenderPlace,
        *,
        drain: Drain,
        presence: Presence,
        resend: Callable[[str], None],
    ) -> None:
        """`resend` puts the id of a job that was given back on the queue again."""
        self._engine = engine
        self._write = write
        self._store = store
        self._place = place
        self._drain = drain
        self._presence = presence
        self._resend = resend
        self._current: Claim | None = None
        self._lock = threading.Lock()

    def run(self, job_id: str) -> None:
        """Run the best queued job of the model; a message that finds none is a duplicate."""
        if self._drain.is_on:
            self._resend(job_id)
            return
        claim = self._store.jobs.claim(
            self._place.model,
            self._place.worker,
            self._place.lease_s,
            max_crashes=self._place.max_crashes,
        )
        if claim is None:
            _logger.info("no job is left for the message of %s", job_id)
            return
        self._current = claim
        self._presence.update(state=WorkerState.BUSY)
        try:
            self._run_claim(claim)
        except Exception:
            _logger.exception("job %s: its outcome could not be recorded", claim.job_id)
        finally:
            self._current = None
            self._presence.update(state=WorkerState.IDLE)

    def give_back(self) -> None:
        """Return the running job to the queue, if there is one, while it still runs here."""
        with self._lock:
            claim, self._current = self._current, None
        if claim is not None:
            _logger.warning("job %s is given back: it did not reach a border", claim.job_id)
            self._release(claim)

    def _run_claim(self, claim: Claim) -> None:
        folder = self._scratch(claim)
        paths: list[str] = []
        heart = Heartbeat(
            self._store.jobs, claim, lease_s=self._place.lease_s, beat_s=self._place.beat_s
        )
        try:
            with heart:
                outcome = self._outcome(claim, heart, folder, paths)
                is_kept = outcome is not None and self._finish(claim, outcome)
            if not is_kept:
                self._store.artifacts.delete(paths)
            if outcome is None and heart.stop_reason is not StopReason.LOST:
                self._release(claim)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _outcome(
        self, claim: Claim, heart: Heartbeat, folder: Path, paths: list[str]
    ) -> Outcome | None:
        """How the job ended; None when it was stopped for no fault of its own."""
        try:
            artifacts = self._render(claim, heart, folder, paths)
        except Interrupted:
            is_cancelled = heart.stop_reason is StopReason.CANCELLED
            return Cancelled() if is_cancelled else None
        except Exception as error:
            _logger.exception("job %s failed", claim.job_id)
            return Failed(failure_of(error))
        return Succeeded(artifacts)

    def _render(
        self, claim: Claim, heart: Heartbeat, folder: Path, paths: list[str]
    ) -> list[Artifact]:
        def should_stop() -> bool:
            return heart.stop_reason is not None or self._drain.is_on

        request = video_request(claim.request, self._store.files, self._engine.limits)
        report = ProgressReport(heart.report)
        result: VideoResult | None = None
        for event in self._engine.generate(request, should_stop=should_stop):
            if isinstance(event, VideoResult):
                result = event
            else:
                report.step(event.stage, event.step, event.steps, event.percent)
        if result is None:
            raise RuntimeError("the engine ended without a result")
        report.writing()
        return self._store_files(claim, result, folder, paths, should_stop)

    def _store_files(
        self,
        claim: Claim,
        result: VideoResult,
        folder: Path,
        paths: list[str],
        should_stop: Callable[[], bool],
    ) -> list[Artifact]:
        files = self._write(
            result, folder, save_frames=claim.request.save_frames, should_stop=should_stop
        )
        artifacts: list[Artifact] = []
        for file in files:
            if should_stop():
                raise Interrupted("stopped while the files were stored")
            paths.append(job_path(claim.job_id, claim.attempt, file.name))
            stored = self._store.artifacts.write_file(file, paths[-1])
            artifacts.append(
                Artifact(
                    name=file.name,
                    media_type=media_type_of(file.name),
                    bytes=stored.bytes,
                    sha256=stored.sha256,
                    path=stored.path,
                )
            )
        return artifacts

    def _finish(self, claim: Claim, outcome: Outcome) -> bool:
        is_held = retry_on_database_trouble(lambda: self._store.jobs.finish(claim, outcome))
        name = type(outcome).__name__.lower()
        if not is_held:
            _logger.warning("job %s: %s, but the claim is stale", claim.job_id, name)
        else:
            _logger.info("job %s attempt %d: %s", claim.job_id, claim.attempt, name)
        return is_held and isinstance(outcome, Succeeded)

    def _release(self, claim: Claim) -> None:
        if retry_on_database_trouble(lambda: self._store.jobs.release(claim)):
            _logger.info("job %s is back in the queue", claim.job_id)
            self._resend(claim.job_id)

    def _scratch(self, claim: Claim) -> Path:
        """An empty folder for this attempt; what earlier attempts left behind goes."""
        self._place.scratch.mkdir(parents=True, exist_ok=True)
        for leftover in self._place.scratch.glob(f"{claim.job_id}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        folder = self._place.scratch / f"{claim.job_id}-{claim.attempt}"
        folder.mkdir()
        return folder
