"""Rows of the table `jobs` turned into jobs, a whole page with a fixed number of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.errors import JobNotFound
from workers.protocol import (
    Artifact,
    Job,
    JobError,
    JobKind,
    JobLabels,
    JobProgress,
    JobStatus,
    VideoJobRequest,
)
from workers.store import tables
from workers.store.own_row import own_row

JobRow = sa.Row[Any]
_MAX_IDS = 1000  # in one statement; databases bound the number of parameters
_jobs = tables.jobs


def find_row(
    conn: Connection, job_id: str, key_id: str | None, *, for_update: bool = False
) -> JobRow:
    """The row of a job that this key may see (None: any key), locked with `for_update`.

    Raises:
        JobNotFound: it is absent, deleted, or of another key.
    """
    is_kept = _jobs.c.deleted_at.is_(None)
    row = own_row(conn, _jobs, job_id, key_id, is_kept, for_update=for_update)
    if row is None:
        raise JobNotFound(job_id)
    return row


def load_jobs(conn: Connection, job_ids: Sequence[str], *, hide_deleted: bool = False) -> list[Job]:
    """The jobs of these ids as they are in this transaction, in id order; absent ones are not."""
    jobs: list[Job] = []
    ordered = sorted(job_ids)
    for start in range(0, len(ordered), _MAX_IDS):
        chunk = _jobs.c.id.in_(ordered[start : start + _MAX_IDS])
        query = sa.select(_jobs).where(chunk).order_by(_jobs.c.id)
        if hide_deleted:
            query = query.where(_jobs.c.deleted_at.is_(None))
        jobs += to_jobs(conn, conn.execute(query).all())
    return jobs


def load_job(conn: Connection, job_id: str) -> Job:
    """One job as it is in this transaction; it must exist."""
    (job,) = load_jobs(conn, [job_id])
    return job


def to_jobs(conn: Connection, rows: Sequence[JobRow]) -> list[Job]:
    """Rows turned into jobs, in the same order: two more queries, however many rows."""
    positions = _queue_positions(conn, [row for row in rows if row.status == JobStatus.QUEUED])
    artifacts = _artifacts(conn, [row.id for row in rows if row.status == JobStatus.SUCCEEDED])
    return [_job(row, positions.get(row.id), artifacts[row.id]) for row in rows]


def _queue_positions(conn: Connection, queued: Sequence[JobRow]) -> dict[str, int]:
    """Place in the claim order of its model, counted from 0, of each queued row."""
    if not queued:
        return {}
    place = sa.func.row_number().over(
        partition_by=_jobs.c.model, order_by=(_jobs.c.rank, _jobs.c.id)
    )
    models = {row.model for row in queued}
    line = sa.select(_jobs.c.id, (place - 1).label("position")).where(
        _jobs.c.model.in_(models), _jobs.c.status == JobStatus.QUEUED
    )
    ranked = line.subquery()
    query = sa.select(ranked).where(ranked.c.id.in_([row.id for row in queued]))
    return {row.id: row.position for row in conn.execute(query)}


def _artifacts(conn: Connection, job_ids: Sequence[str]) -> dict[str, tuple[Artifact, ...]]:
    found: defaultdict[str, tuple[Artifact, ...]] = defaultdict(tuple)
    if job_ids:
        files = tables.artifacts
        query = sa.select(files).where(files.c.job_id.in_(job_ids))
        for row in conn.execute(query.order_by(files.c.job_id, files.c.place)):
            found[row.job_id] += (
                Artifact(
                    name=row.name,
                    media_type=row.media_type,
                    bytes=row.bytes,
                    sha256=row.sha256,
                    path=row.path,
                ),
            )
    return found


def _job(row: JobRow, position: int | None, artifacts: tuple[Artifact, ...]) -> Job:
    return Job(
        id=row.id,
        kind=JobKind(row.kind),
        status=JobStatus(row.status),
        request=VideoJobRequest.model_validate_json(row.request),
        labels=JobLabels.model_validate_json(row.labels),
        progress=None if row.progress is None else JobProgress.model_validate_json(row.progress),
        queue_position=position,
        attempt=row.attempt,
        crashes=row.crashes,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        changed_at=row.changed_at,
        artifacts=artifacts,
        error=None if row.error is None else JobError.model_validate_json(row.error),
        key_id=row.key_id,
        batch_id=row.batch_id,
    )
