"""Bodies of /v1/videos, in OpenAI's shape."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.video.body import REMIX_TAG
from workers.protocol import Job, JobStatus

VideoStatus = Literal["queued", "in_progress", "completed", "failed"]
_STATUS: dict[JobStatus, VideoStatus] = {
    JobStatus.QUEUED: "queued",
    JobStatus.RUNNING: "in_progress",
    JobStatus.CANCELLING: "in_progress",
    JobStatus.SUCCEEDED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "failed",
    JobStatus.DEAD: "failed",
}


class VideoBody(BaseModel):
    """OpenAI's fields, and the extras of other open servers. `input_reference` is the picture."""

    model_config = ConfigDict(extra="ignore")

    prompt: str
    model: str | None = None
    seconds: str | float | None = None
    size: str | None = Field(default=None, description="WIDTHxHEIGHT")
    input_reference: Any = Field(
        default=None,
        description="A file part; in JSON a file id, a data: URL, or {file_id} or {image_url}.",
    )
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    num_frames: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    negative_prompt: str | None = None


class RemixBody(BaseModel):
    """New words for the same picture and seed."""

    model_config = ConfigDict(strict=True, extra="ignore")

    prompt: str = Field(min_length=1, max_length=100_000)


class VideoError(BaseModel):
    """Why a video failed."""

    code: str
    message: str


class VideoView(BaseModel):
    """A job as OpenAI's video object. `progress` is 0–100."""

    id: str
    object: Literal["video"] = "video"
    created_at: int
    completed_at: int | None
    expires_at: int | None = None
    status: VideoStatus
    progress: int
    model: str
    prompt: str
    seconds: str
    size: str
    error: VideoError | None
    remixed_from_video_id: str | None


class VideoList(BaseModel):
    """One page of videos."""

    object: Literal["list"] = "list"
    data: list[VideoView]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVideo(BaseModel):
    """A video is gone."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


def video_view(job: Job) -> VideoView:
    """A job as a video; what was cancelled counts as failed, since OpenAI has no such state."""
    finished = job.finished_at
    is_done = job.status == JobStatus.SUCCEEDED
    return VideoView(
        id=job.id,
        created_at=int(job.created_at.timestamp()),
        completed_at=int(finished.timestamp()) if is_done and finished else None,
        status=_STATUS[job.status],
        progress=100 if is_done else int(job.progress.percent) if job.progress else 0,
        model=job.request.model,
        prompt=job.request.prompt,
        seconds=f"{job.request.seconds:g}",
        size=f"{job.request.width}x{job.request.height}",
        error=_error(job),
        remixed_from_video_id=_remixed_from(job),
    )


def _error(job: Job) -> VideoError | None:
    if _STATUS[job.status] != "failed":
        return None
    if job.error is not None:
        return VideoError(code=job.error.code, message=job.error.message)
    if job.status == JobStatus.CANCELLED:
        return VideoError(code="cancelled", message="The job was cancelled.")
    return VideoError(code=job.status.value, message="The job failed.")


def _remixed_from(job: Job) -> str | None:
    for tag in job.labels.tags:
        if tag.startswith(REMIX_TAG):
            return tag.removeprefix(REMIX_TAG)
    return None
