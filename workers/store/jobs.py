"""The job store: durable rows, the queue's verbs, and what people do to jobs."""

from __future__ import annotations

import builtins
from datetime import timedelta

import sqlalchemy as sa

from workers.errors import JobNotRetryable
from workers.protocol import Job, JobStatus
from workers.store import tables
from workers.store.artifacts import job_folder
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.job_intake import JobIntake
from workers.store.job_lease import JobLeases
from workers.store.job_read import JobReader
from workers.store.job_rows import find_row, load_job, to_jobs
from workers.store.job_states import RETRYABLE, close_attempt, end, move, requeue
from workers.store.values import (
    Attempt,
    AttemptOutcome,
    Beat,
    Cancelled,
    Claim,
    Created,
    Failed,
    Idempotency,
    JobFilters,
    JobQueue,
    Outcome,
    Page,
    Reaped,
    Succeeded,
)

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Beat",
    "Cancelled",
    "Claim",
    "Created",
    "Failed",
    "Idempotency",
    "JobFilters",
    "JobQueue",
    "JobStore",
    "Outcome",
    "Page",
    "Reaped",
    "Succeeded",
]

_jobs = tables.jobs
_MAX_STALE = 500


class JobStore(JobIntake, JobLeases, JobReader):
    """All jobs of a deployment.

    Invariants: a status changes only as `job_states` allows; each entry into a terminal state
    writes one event in the same transaction; a job of another key is never found.
    """

    def __init__(self, db: Database, clock: Clock, ids: IdSource) -> None:
        """Work on `db`."""
        self._db = db
        self._clock = clock
        self._ids = ids

    def queued_older_than(self, seconds: float) -> builtins.list[Job]:
        """Queued jobs whose last message is older than `seconds`: send them again.

        State: each job that comes back counts as sent now, so it does not come back for another
        `seconds`, neither here nor in another process. At most 500 at once, oldest first.
        """
        now = self._clock()
        stale = sa.select(_jobs).where(
            _jobs.c.status == JobStatus.QUEUED, _jobs.c.sent_at <= now - timedelta(seconds=seconds)
        )
        stale = stale.order_by(_jobs.c.sent_at, _jobs.c.id).limit(_MAX_STALE)
        with self._db.write() as conn:
            rows = conn.execute(stale.with_for_update(skip_locked=True)).all()
            these = _jobs.c.id.in_([row.id for row in rows])
            conn.execute(sa.update(_jobs).where(these).values(sent_at=now))
            return to_jobs(conn, rows)

    def request_cancel(self, job_id: str, key_id: str | None) -> Job:
        """Cancel a queued job at once, tell a running one to stop; others stay as they are.

        Raises:
            JobNotFound: it is absent, deleted, or not this key's.
        """
        now = self._clock()
        with self._db.write() as conn:
            row = find_row(conn, job_id, key_id, for_update=True)
            if row.status == JobStatus.QUEUED:
                end(conn, row, JobStatus.CANCELLED, now, self._ids)
            elif row.status == JobStatus.RUNNING:
                move(conn, row, JobStatus.CANCELLING, now)
            return load_job(conn, job_id)

    def retry(self, job_id: str, key_id: str | None) -> Job:
        """Queue a failed, cancelled or dead job again: same row, same pixels, no crashes.

        Raises:
            JobNotFound: it is absent, deleted, or not this key's.
            JobNotRetryable: it is in another state.
        """
        with self._db.write() as conn:
            row = find_row(conn, job_id, key_id, for_update=True)
            if row.status not in RETRYABLE:
                raise JobNotRetryable(job_id, row.status)
            requeue(conn, row, self._clock(), crashes=0)
            return load_job(conn, job_id)

    def delete(self, job_id: str, key_id: str | None) -> builtins.list[str]:
        """Remove a job and give back the paths to remove from the artifact store.

        The last path is the job's folder, with what lost attempts left there. A job that did not
        end is cancelled first. While a worker has it, the row stays hidden, so that the worker's
        claim is stale and it discards its output; `purge` removes such a row later.

        Raises:
            JobNotFound: it is absent, deleted, or not this key's.
        """
        now = self._clock()
        with self._db.write() as conn:
            row = find_row(conn, job_id, key_id, for_update=True)
            status = JobStatus(row.status)
            if not status.is_terminal:
                end(conn, row, JobStatus.CANCELLED, now, self._ids)
            if not status.is_terminal and status is not JobStatus.QUEUED:
                close_attempt(conn, row, AttemptOutcome.CANCELLED, now)
                keys = tables.idempotency_keys
                conn.execute(sa.delete(keys).where(keys.c.job_id == job_id))
                hide = sa.update(_jobs).where(_jobs.c.id == job_id)
                conn.execute(hide.values(deleted_at=now, changed_at=now))
                return []
            files = tables.artifacts
            paths = conn.execute(sa.select(files.c.path).where(files.c.job_id == job_id)).scalars()
            gone = [*paths, job_folder(job_id)]
            conn.execute(sa.delete(_jobs).where(_jobs.c.id == job_id))
        return gone

    def purge(self, older_than_s: float) -> builtins.list[str]:
        """Remove for good the jobs deleted while they ran, once that is `older_than_s` ago.

        Gives back the folders to remove from the artifact store.
        """
        old = _jobs.c.deleted_at <= self._clock() - timedelta(seconds=older_than_s)
        with self._db.write() as conn:
            gone = conn.execute(sa.select(_jobs.c.id).where(old).with_for_update()).scalars().all()
            conn.execute(sa.delete(_jobs).where(old))
        return [job_folder(job_id) for job_id in gone]
