"""The verbs of a worker: claim, heartbeat, finish, release; and reap, for workers that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.protocol import Artifact, JobError, JobProgress, JobStatus, VideoJobRequest
from workers.store import tables
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.job_rows import JobRow, load_jobs
from workers.store.job_states import HELD, close_attempt, end, move, open_attempt, requeue
from workers.store.values import (
    AttemptOutcome,
    Beat,
    Cancelled,
    Claim,
    Failed,
    JobQueue,
    Outcome,
    Reaped,
    Succeeded,
)

_jobs = tables.jobs
_MAX_REAPED = 500


class JobLeases(JobQueue):
    """The queue of jobs. Each verb is one transaction and takes the time from the store's clock."""

    def __init__(self, db: Database, clock: Clock, ids: IdSource) -> None:
        """Work on `db`."""
        self._db = db
        self._clock = clock
        self._ids = ids

    def claim(
        self, model: str, worker: str, lease_s: float, *, max_crashes: int = 3
    ) -> Claim | None:
        """Take the best queued job of `model`, else one whose lease ran out.

        Best is the smallest priority, then the oldest. Taking over from a lost worker counts as a
        crash; a job whose next crash would be number `max_crashes` is left for `reap`.
        """
        now = self._clock()
        with self._db.write() as conn:
            row = _next_queued(conn, model) or _next_lost(conn, model, now, max_crashes)
            if row is None:
                return None
            is_lost = row.status == JobStatus.RUNNING
            attempt = row.attempt + 1
            moved = move(
                conn,
                row,
                JobStatus.RUNNING,
                now,
                attempt=attempt,
                crashes=row.crashes + is_lost,
                lease_until=now + timedelta(seconds=lease_s),
                started_at=now,
                progress=None,
            )
            assert moved, "a locked row changed"
            if is_lost:
                close_attempt(conn, row, AttemptOutcome.LOST, now)
            open_attempt(conn, row.id, attempt, worker, now)
        request = VideoJobRequest.model_validate_json(row.request)
        return Claim(job_id=row.id, attempt=attempt, worker=worker, request=request)

    def heartbeat(self, claim: Claim, lease_s: float, progress: JobProgress | None) -> Beat:
        """Make the lease end `lease_s` seconds from now and record progress, which never falls.

        A late beat revives a lease that ran out, unless the job was taken away in between.
        """
        now = self._clock()
        with self._db.write() as conn:
            row = _held(conn, claim)
            if row is None:
                return Beat(held=False, cancel_requested=False)
            values: dict[str, object] = {"lease_until": now + timedelta(seconds=lease_s)}
            if progress is not None:
                shown = _no_less(progress, row.progress)
                values |= {"progress": shown.model_dump_json(), "changed_at": now}
            conn.execute(sa.update(_jobs).where(_jobs.c.id == row.id).values(values))
            return Beat(held=True, cancel_requested=row.status == JobStatus.CANCELLING)

    def finish(self, claim: Claim, outcome: Outcome) -> bool:
        """End the job and write its event; False: the claim is stale, discard the output."""
        now = self._clock()
        with self._db.write() as conn:
            row = _held(conn, claim)
            if row is None:
                return False
            match outcome:
                case Succeeded(artifacts):
                    _insert_artifacts(conn, row.id, artifacts)
                    last = _complete(row.progress)
                    done = end(
                        conn, row, JobStatus.SUCCEEDED, now, self._ids, error=None, progress=last
                    )
                    ended = AttemptOutcome.SUCCEEDED
                case Failed(error):
                    text = error.model_dump_json()
                    done = end(conn, row, JobStatus.FAILED, now, self._ids, error=text)
                    ended = AttemptOutcome.FAILED
                case Cancelled():
                    done = end(conn, row, JobStatus.CANCELLED, now, self._ids)
                    ended = AttemptOutcome.CANCELLED
            assert done, "a locked row changed"
            close_attempt(conn, row, ended, now)
        return True

    def release(self, claim: Claim) -> bool:
        """Give the job back to the queue, as no crash; one told to stop is cancelled instead."""
        now = self._clock()
        with self._db.write() as conn:
            row = _held(conn, claim)
            if row is None:
                return False
            if row.status == JobStatus.CANCELLING:
                end(conn, row, JobStatus.CANCELLED, now, self._ids)
                close_attempt(conn, row, AttemptOutcome.CANCELLED, now)
            else:
                requeue(conn, row, now, crashes=row.crashes)
                close_attempt(conn, row, AttemptOutcome.RELEASED, now)
        return True

    def reap(self, *, max_crashes: int) -> Reaped:
        """Take jobs away whose lease ran out: crashes += 1, then queued again or dead.

        A job is dead when it has lost `max_crashes` workers; one told to stop is cancelled. At
        most 500 jobs at once, so that the transaction stays short.
        """
        now = self._clock()
        went: dict[JobStatus, list[str]] = {
            status: [] for status in (JobStatus.QUEUED, JobStatus.DEAD, JobStatus.CANCELLED)
        }
        lost = sa.select(_jobs).where(_jobs.c.status.in_(HELD), _jobs.c.lease_until <= now)
        lost = lost.order_by(_jobs.c.id).limit(_MAX_REAPED).with_for_update(skip_locked=True)
        with self._db.write() as conn:
            for row in conn.execute(lost).all():
                went[self._reap_one(conn, row, now, max_crashes)].append(row.id)
            return Reaped(
                requeued=load_jobs(conn, went[JobStatus.QUEUED]),
                dead=load_jobs(conn, went[JobStatus.DEAD]),
                cancelled=load_jobs(conn, went[JobStatus.CANCELLED]),
            )

    def _reap_one(
        self, conn: Connection, row: JobRow, now: datetime, max_crashes: int
    ) -> JobStatus:
        close_attempt(conn, row, AttemptOutcome.LOST, now)
        crashes = row.crashes + 1
        if row.status == JobStatus.CANCELLING:
            end(conn, row, JobStatus.CANCELLED, now, self._ids, crashes=crashes)
            return JobStatus.CANCELLED
        if crashes < max_crashes:
            requeue(conn, row, now, crashes=crashes)
            return JobStatus.QUEUED
        times = "once" if crashes == 1 else f"{crashes} times"
        error = JobError(code="worker_lost", message=f"worker lost {times}").model_dump_json()
        end(conn, row, JobStatus.DEAD, now, self._ids, crashes=crashes, error=error)
        return JobStatus.DEAD


def _next_queued(conn: Connection, model: str) -> JobRow | None:
    query = sa.select(_jobs).where(_jobs.c.model == model, _jobs.c.status == JobStatus.QUEUED)
    query = query.order_by(_jobs.c.rank, _jobs.c.id).limit(1)
    return conn.execute(query.with_for_update(skip_locked=True)).one_or_none()


def _next_lost(conn: Connection, model: str, now: datetime, max_crashes: int) -> JobRow | None:
    query = sa.select(_jobs).where(
        _jobs.c.model == model,
        _jobs.c.status == JobStatus.RUNNING,
        _jobs.c.lease_until <= now,
        _jobs.c.crashes + 1 < max_crashes,
    )
    query = query.order_by(_jobs.c.rank, _jobs.c.id).limit(1)
    return conn.execute(query.with_for_update(skip_locked=True)).one_or_none()


def _held(conn: Connection, claim: Claim) -> JobRow | None:
    """The row of a claim that still holds, locked; None when the fencing token is stale."""
    query = sa.select(_jobs).where(
        _jobs.c.id == claim.job_id,
        _jobs.c.attempt == claim.attempt,
        _jobs.c.status.in_(HELD),
        _jobs.c.deleted_at.is_(None),
    )
    return conn.execute(query.with_for_update()).one_or_none()


def _complete(progress: str | None) -> str | None:
    """The last progress of a job, which its heartbeat saw before the end, as all of it."""
    if progress is None:
        return None
    seen = JobProgress.model_validate_json(progress)
    whole = {"step": seen.steps, "percent": 100.0, "eta_seconds": 0.0}
    return seen.model_copy(update=whole).model_dump_json()


def _no_less(progress: JobProgress, before: str | None) -> JobProgress:
    if before is None:
        return progress
    percent = max(progress.percent, JobProgress.model_validate_json(before).percent)
    return progress.model_copy(update={"percent": percent})


def _insert_artifacts(conn: Connection, job_id: str, artifacts: Sequence[Artifact]) -> None:
    rows = [
        artifact.model_dump() | {"job_id": job_id, "place": place}
        for place, artifact in enumerate(artifacts)
    ]
    if rows:
        conn.execute(sa.insert(tables.artifacts), rows)
