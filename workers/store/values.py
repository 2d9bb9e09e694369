"""What goes into and comes out of the job store, beside the wire types of `workers.protocol`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from workers.protocol import (
    Artifact,
    Job,
    JobError,
    JobKind,
    JobProgress,
    JobStatus,
    VideoJobRequest,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a job until the lease ends; `attempt` is the fencing token."""

    job_id: str
    attempt: int
    worker: str
    request: VideoJobRequest


@dataclass(frozen=True, slots=True)
class Beat:
    """Answer to a heartbeat: whether the claim still holds, and whether to stop the work."""

    held: bool
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The work is done; `artifacts` are already written."""

    artifacts: Sequence[Artifact]


@dataclass(frozen=True, slots=True)
class Failed:
    """The work cannot be done, and `error` says why."""

    error: JobError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The work stopped because it was told to."""


Outcome = Succeeded | Failed | Cancelled


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key and the fingerprint of the request body it was sent with."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Created:
    """A job and whether it existed before (same idempotency key, same body)."""

    job: Job
    replayed: bool


@dataclass(frozen=True, slots=True)
class Reaped:
    """Jobs whose worker was lost, by where they went."""

    requeued: list[Job]
    dead: list[Job]
    cancelled: list[Job]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilters:
    """Which jobs to list; None lets everything through. `status` may be one or several."""

    status: JobStatus | Sequence[JobStatus] | None = None
    kind: JobKind | None = None
    project: str | None = None
    tag: str | None = None
    batch_id: str | None = None
    model: str | None = None
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of jobs in id order, and whether more follow."""

    jobs: list[Job]
    has_more: bool


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job; `ended_at` and `outcome` are None while it runs."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: AttemptOutcome | None


class JobQueue(Protocol):
    """The verbs by which workers get and give back jobs.

    Invariants: at most one claim of a job holds at any time; `attempt` only grows; the outcome of
    a stale claim is never accepted.
    """

    def claim(
        self, model: str, worker: str, lease_s: float, *, max_crashes: int = 3
    ) -> Claim | None:
        """Take the best job of `model` for `lease_s` seconds, or None when there is none."""
        ...

    def heartbeat(self, claim: Claim, lease_s: float, progress: JobProgress | None) -> Beat:
        """Make the lease end `lease_s` seconds from now and record progress."""
        ...

    def finish(self, claim: Claim, outcome: Outcome) -> bool:
        """End the job; False means that the claim is stale and the output must be discarded."""
        ...

    def release(self, claim: Claim) -> bool:
        """Give the job back unharmed; False means that the claim is stale."""
        ...

    def reap(self, *, max_crashes: int) -> Reaped:
        """Take jobs away from lost workers."""
        ...
