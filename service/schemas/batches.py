"""Bodies about batches."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.context import Gateway
from service.schemas.jobs import JobView, job_view
from workers.protocol import JobStatus
from workers.store.batches import Batch, BatchShot, BatchSummary

SEEDS_PER_LINE = 128  # more than a line may name
BatchStatus = Literal["queued", "running", "succeeded", "failed", "cancelled", "empty"]


class BatchBody(BaseModel):
    """A named shot list. In a form, `shots` is a CSV or JSONL file and `images` its pictures."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    shots: list[dict[str, Any]] = Field(
        max_length=10_000,
        description="project, sequence, shot, image, prompt, seconds, fps, size, seed(s) …",
    )
    dry_run: bool = Field(default=False, description="Check the list and queue nothing.")


class ShotView(BaseModel):
    """One clip of a batch. `job` is null when the job was deleted, or not made by a dry run."""

    line: int
    shot: str
    seed: int | None
    job_id: str | None
    is_reused: bool | None = None
    job: JobView | None


class BatchView(BaseModel):
    """A batch as it is now; `counts` has the number of shots in each state that occurs.

    `num_new` and `num_reused` say what a submission queued, and which shots an earlier batch of
    the same name has made or is making already.
    """

    id: str | None
    object: Literal["batch"] = "batch"
    name: str
    status: BatchStatus
    created_at: datetime | None
    counts: dict[str, int]
    dry_run: bool = False
    num_new: int | None = None
    num_reused: int | None = None
    shots: list[ShotView]


class BatchSummaryView(BaseModel):
    """A batch in a list."""

    id: str
    object: Literal["batch"] = "batch"
    name: str
    status: BatchStatus
    created_at: datetime
    num_shots: int
    counts: dict[str, int]


class BatchList(BaseModel):
    """Batches, newest first."""

    object: Literal["list"] = "list"
    data: list[BatchSummaryView]
    has_more: bool


def batch_view(batch: Batch, gateway: Gateway) -> BatchView:
    """A batch as callers see it."""
    return BatchView(
        id=batch.id,
        name=batch.name,
        status=batch_status(batch.counts),
        created_at=batch.created_at,
        counts={status.value: number for status, number in batch.counts.items()},
        shots=[_shot_view(shot, gateway) for shot in batch.shots],
    )


def summary_view(summary: BatchSummary) -> BatchSummaryView:
    """A batch of a list as callers see it."""
    return BatchSummaryView(
        id=summary.id,
        name=summary.name,
        status=batch_status(summary.counts),
        created_at=summary.created_at,
        num_shots=summary.num_shots,
        counts={status.value: number for status, number in summary.counts.items()},
    )


def batch_status(counts: Mapping[JobStatus, int]) -> BatchStatus:
    """The state of the whole: what is still at work first, then what went wrong."""
    present = {status for status, number in counts.items() if number}
    if not present:
        return "empty"
    if present == {JobStatus.QUEUED}:
        return "queued"
    if any(not status.is_terminal for status in present):
        return "running"
    if present & {JobStatus.FAILED, JobStatus.DEAD}:
        return "failed"
    return "cancelled" if JobStatus.CANCELLED in present else "succeeded"


def _shot_view(shot: BatchShot, gateway: Gateway) -> ShotView:
    job = shot.job
    return ShotView(
        line=line_of(shot.row),
        shot=job.labels.shot if job else "",
        seed=job.request.seed if job else None,
        job_id=shot.job_id,
        job=job_view(job, gateway) if job else None,
    )


def row_of(line: int, index: int) -> int:
    """The number that the store keeps for clip `index` of a line: unique, and in list order."""
    return line * SEEDS_PER_LINE + index


def line_of(row: int) -> int:
    """The line of a stored row."""
    return row // SEEDS_PER_LINE
