"""Making jobs: bounded, and once only per idempotency key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.errors import IdempotencyMismatch, QueueFull
from workers.protocol import Job, JobKind, JobLabels, JobStatus, VideoJobRequest
from workers.store import tables
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.job_rows import load_job, load_jobs
from workers.store.text import check_text
from workers.store.values import Created, Idempotency

_jobs = tables.jobs


class JobIntake:
    """Puts jobs into the queue; creators are served one after the other, so bounds are exact."""

    def __init__(self, db: Database, clock: Clock, ids: IdSource) -> None:
        """Work on `db`."""
        self._db = db
        self._clock = clock
        self._ids = ids

    def create(
        self,
        request: VideoJobRequest,
        labels: JobLabels,
        *,
        key_id: str,
        max_queued: int,
        kind: JobKind = JobKind.IMAGE_TO_VIDEO,
        idempotency: Idempotency | None = None,
        batch_id: str | None = None,
    ) -> Created:
        """Queue a job, or give back the one that the same idempotency key made before.

        The key is kept in the transaction that makes the job: either both exist or neither.

        Raises:
            QueueFull: `max_queued` jobs wait already.
            IdempotencyMismatch: the key was used with another fingerprint.
            InvalidText: a label or the key cannot be stored.
        """
        if idempotency is not None:
            check_text("idempotency key", idempotency.key)
        row, tags = self._row(request, labels, key_id, kind, batch_id, self._clock())
        with self._db.write() as conn:
            self._db.serialise(conn, "create")
            if idempotency is not None:
                known = _known_job(conn, key_id, idempotency)
                if known is not None:
                    return Created(load_job(conn, known), replayed=True)
            _insert(conn, [row], tags, max_queued)
            if idempotency is not None:
                _keep_key(conn, row, idempotency)
            return Created(load_job(conn, row["id"]), replayed=False)

    def create_many(
        self,
        items: Sequence[tuple[VideoJobRequest, JobLabels]],
        *,
        key_id: str,
        batch_id: str,
        max_queued: int,
        kind: JobKind = JobKind.IMAGE_TO_VIDEO,
    ) -> list[Job]:
        """Queue all of `items`, or none; the jobs come back in the order of the items.

        Raises:
            QueueFull: with these more than `max_queued` jobs would wait.
            InvalidText: a label cannot be stored.
        """
        now = self._clock()
        rows: list[dict[str, Any]] = []
        tags: list[dict[str, str]] = []
        for request, labels in items:
            row, its_tags = self._row(request, labels, key_id, kind, batch_id, now)
            rows.append(row)
            tags += its_tags
        with self._db.write() as conn:
            self._db.serialise(conn, "create")
            _insert(conn, rows, tags, max_queued)
            return load_jobs(conn, [row["id"] for row in rows])

    def forget_idempotency_keys(self, older_than_s: float) -> int:
        """Make keys usable again that are older than `older_than_s` seconds; how many."""
        keys = tables.idempotency_keys
        old = keys.c.created_at < self._clock() - timedelta(seconds=older_than_s)
        with self._db.write() as conn:
            return conn.execute(sa.delete(keys).where(old)).rowcount

    def _row(
        self,
        request: VideoJobRequest,
        labels: JobLabels,
        key_id: str,
        kind: JobKind,
        batch_id: str | None,
        now: datetime,
    ) -> tuple[dict[str, Any], list[dict[str, str]]]:
        """A row of `jobs`, and its rows of `job_tags`."""
        _check(request, labels, batch_id)
        job_id = self._ids.make("job_")
        row: dict[str, Any] = {
            "id": job_id,
            "kind": kind,
            "model": request.model,
            "status": JobStatus.QUEUED,
            "rank": labels.priority,
            "request": request.model_dump_json(),
            "labels": labels.model_dump_json(),
            "project": labels.project,
            "attempt": 0,
            "crashes": 0,
            "key_id": key_id,
            "batch_id": batch_id,
            "created_at": now,
            "changed_at": now,
            "sent_at": now,
        }
        return row, [{"job_id": job_id, "tag": tag} for tag in dict.fromkeys(labels.tags)]


def _check(request: VideoJobRequest, labels: JobLabels, batch_id: str | None) -> None:
    """Check what has a column; the rest is kept as JSON, which escapes everything."""
    check_text("model", request.model)
    check_text("project", labels.project)
    check_text("batch_id", batch_id or "")
    check_text("webhook_url", labels.webhook_url or "")
    for tag in labels.tags:
        check_text("tag", tag)


def _known_job(conn: Connection, key_id: str, idempotency: Idempotency) -> str | None:
    keys = tables.idempotency_keys
    query = sa.select(keys).where(keys.c.key_id == key_id, keys.c.key == idempotency.key)
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    if row.fingerprint != idempotency.fingerprint:
        raise IdempotencyMismatch(idempotency.key)
    return row.job_id


def _keep_key(conn: Connection, job: dict[str, Any], idempotency: Idempotency) -> None:
    values = {
        "key_id": job["key_id"],
        "key": idempotency.key,
        "fingerprint": idempotency.fingerprint,
        "job_id": job["id"],
        "created_at": job["created_at"],
    }
    conn.execute(sa.insert(tables.idempotency_keys).values(values))


def _insert(
    conn: Connection,
    rows: Sequence[dict[str, Any]],
    tags: Iterable[dict[str, str]],
    max_queued: int,
) -> None:
    waiting = sa.select(sa.func.count()).where(_jobs.c.status == JobStatus.QUEUED)
    num_queued = conn.execute(waiting).scalar_one()
    if num_queued + len(rows) > max_queued:
        raise QueueFull(num_queued, len(rows), max_queued)
    if rows:
        conn.execute(sa.insert(_jobs), list(rows))
    if tag_rows := list(tags):
        conn.execute(sa.insert(tables.job_tags), tag_rows)
