"""Answers about jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from service.context import Gateway
from workers.protocol import (
    Artifact,
    Job,
    JobError,
    JobKind,
    JobProgress,
    JobStatus,
    VideoJobRequest,
)


class ArtifactView(BaseModel):
    """One file of a job. `url` may be fetched without a key for up to an hour."""

    name: str
    media_type: str
    bytes: int
    sha256: str
    url: str


class JobView(BaseModel):
    """A job as it is now.

    `status` is queued, running, cancelling, succeeded, failed, cancelled or dead;
    `queue_position` is 0 for the next to start and null unless queued.
    """

    id: str
    kind: JobKind
    status: JobStatus
    progress: JobProgress | None
    queue_position: int | None
    attempt: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    request: VideoJobRequest
    artifacts: list[ArtifactView]
    error: JobError | None
    project: str
    shot: str
    tags: list[str]
    priority: int
    batch_id: str | None


class JobList(BaseModel):
    """One page of jobs."""

    object: Literal["list"] = "list"
    data: list[JobView]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedJob(BaseModel):
    """A job is gone."""

    id: str
    object: Literal["job.deleted"] = "job.deleted"
    deleted: Literal[True] = True


def job_view(job: Job, gateway: Gateway) -> JobView:
    """A job as callers see it."""
    return JobView(
        id=job.id,
        kind=job.kind,
        status=job.status,
        progress=job.progress,
        queue_position=job.queue_position,
        attempt=job.attempt,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        request=job.request,
        artifacts=[artifact_view(job, artifact, gateway) for artifact in job.artifacts],
        error=job.error,
        project=job.labels.project,
        shot=job.labels.shot,
        tags=list(job.labels.tags),
        priority=job.labels.priority,
        batch_id=job.batch_id,
    )


def job_list(jobs: list[Job], gateway: Gateway, *, has_more: bool) -> JobList:
    """A page of jobs as callers see it."""
    return JobList(
        data=[job_view(job, gateway) for job in jobs],
        first_id=jobs[0].id if jobs else None,
        last_id=jobs[-1].id if jobs else None,
        has_more=has_more,
    )


def artifact_view(job: Job, artifact: Artifact, gateway: Gateway) -> ArtifactView:
    """One artifact with an address that works in a browser."""
    path = f"/jobs/{job.id}/artifacts/{artifact.name}"
    url = path if gateway.settings.auth == "off" else gateway.signer.sign(path, key_id=job.key_id)
    return ArtifactView(
        name=artifact.name,
        media_type=artifact.media_type,
        bytes=artifact.bytes,
        sha256=artifact.sha256,
        url=url,
    )
