"""The state machine: the one place that changes the status of a job.

    queued     -> running      claim
    queued     -> cancelled    cancel, delete
    running    -> running      claim after the lease ran out
    running    -> cancelling   cancel
    running    -> queued       release, reap
    running    -> succeeded, failed, cancelled, dead
    cancelling -> succeeded, failed, cancelled
    failed, cancelled, dead -> queued    retry, on request only

A job that was told to stop may still succeed: the worker was done before it heard of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.protocol import JobStatus
from workers.store import tables
from workers.store.ids import IdSource
from workers.store.job_rows import JobRow, load_job
from workers.store.values import AttemptOutcome
from workers.store.webhooks import write_event

HELD = (JobStatus.RUNNING, JobStatus.CANCELLING)
RETRYABLE = (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DEAD)

_ENDS = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED})
_NEXT: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    JobStatus.RUNNING: _ENDS
    | {JobStatus.DEAD, JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.QUEUED},
    JobStatus.CANCELLING: _ENDS,
    JobStatus.SUCCEEDED: frozenset(),
    JobStatus.FAILED: frozenset({JobStatus.QUEUED}),
    JobStatus.CANCELLED: frozenset({JobStatus.QUEUED}),
    JobStatus.DEAD: frozenset({JobStatus.QUEUED}),
}


def move(conn: Connection, row: JobRow, to: JobStatus, now: datetime, **values: object) -> bool:
    """Change the status of the job in `row`, if it still is as `row` says.

    State: nothing changes when False comes back; another transaction was first.
    """
    before = JobStatus(row.status)
    assert to in _NEXT[before], f"no transition leads from {before} to {to}"
    jobs = tables.jobs
    unchanged = (
        jobs.c.id == row.id,
        jobs.c.status == before,
        jobs.c.attempt == row.attempt,
        jobs.c.deleted_at.is_(None),
    )
    changes: dict[str, Any] = {"status": to, "changed_at": now, **values}
    return conn.execute(sa.update(jobs).where(*unchanged).values(changes)).rowcount == 1


def requeue(conn: Connection, row: JobRow, now: datetime, *, crashes: int) -> bool:
    """Put a job back into the queue as if it had never run, save for `attempt` and `crashes`."""
    return move(
        conn,
        row,
        JobStatus.QUEUED,
        now,
        crashes=crashes,
        progress=None,
        error=None,
        started_at=None,
        finished_at=None,
        lease_until=None,
        sent_at=now,
    )


def end(
    conn: Connection, row: JobRow, to: JobStatus, now: datetime, ids: IdSource, **values: object
) -> bool:
    """Bring a job into the terminal state `to` and write its event in the same transaction."""
    if not move(conn, row, to, now, finished_at=now, lease_until=None, **values):
        return False
    write_event(conn, load_job(conn, row.id), now, ids)
    return True


def open_attempt(conn: Connection, job_id: str, attempt: int, worker: str, now: datetime) -> None:
    """Note that `worker` starts attempt `attempt`."""
    values = {"job_id": job_id, "attempt": attempt, "worker": worker, "started_at": now}
    conn.execute(sa.insert(tables.attempts).values(values))


def close_attempt(conn: Connection, row: JobRow, outcome: AttemptOutcome, now: datetime) -> None:
    """Note how the attempt of `row` ended."""
    runs = tables.attempts
    this = (runs.c.job_id == row.id, runs.c.attempt == row.attempt)
    conn.execute(sa.update(runs).where(*this).values(ended_at=now, outcome=outcome))
