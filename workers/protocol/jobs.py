"""Jobs on the wire: what is asked for, how far it is, what came of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from workers.protocol.wire import Wire


class JobKind(StrEnum):
    """What a job makes."""

    IMAGE_TO_VIDEO = "image_to_video"


class JobStatus(StrEnum):
    """The state machine: queued → running → succeeded | failed | cancelled | dead.

    `cancelling` is a running job that was told to stop; terminal states absorb.
    """

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_terminal(self) -> bool:
        """No transition leaves this state (a retry makes the job queued again, by request)."""
        return self in {self.SUCCEEDED, self.FAILED, self.CANCELLED, self.DEAD}


class JobProgress(Wire):
    """How far a running job is. `percent` is 0–100 of the whole job and never falls."""

    stage: str
    step: int
    steps: int
    percent: float
    eta_seconds: float | None = None


class Artifact(Wire):
    """One file that a job made; `path` is its place in the artifact store."""

    name: str
    media_type: str
    bytes: int
    sha256: str
    path: str


class JobError(Wire):
    """Why a job did not succeed: `code` for programs, `message` for people."""

    code: str
    message: str


class VideoJobRequest(Wire):
    """An image-to-video job with every choice made, so that a retry renders the same pixels.

    `image` is the id of a stored file. Units: sides in pixels, `seconds` of clip, `fps` frames/s.
    """

    model: str
    image: str
    image_name: str = ""
    prompt: str
    negative_prompt: str = ""
    seconds: float
    fps: float
    width: int
    height: int
    fit: Literal["crop", "pad"] = "crop"
    seed: int
    steps: int
    guidance_scale: float | None = None
    save_frames: bool = False


class JobLabels(Wire):
    """How people find a job again, and when it runs: a smaller `priority` sooner.

    None of it changes the pixels.
    """

    priority: int = Field(default=0, ge=-100, le=100)
    project: str = ""
    shot: str = ""
    tags: tuple[str, ...] = ()
    webhook_url: str | None = None


class Job(Wire):
    """One row of the job store, as seen from outside.

    `attempt` is the fencing token: it grows with every claim. `queue_position` is 0 for the next
    job to start and None unless queued.
    """

    id: str
    kind: JobKind
    status: JobStatus
    request: VideoJobRequest
    labels: JobLabels
    progress: JobProgress | None
    queue_position: int | None
    attempt: int
    crashes: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    changed_at: datetime
    artifacts: tuple[Artifact, ...]
    error: JobError | None
    key_id: str
    batch_id: str | None
