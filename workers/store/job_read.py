"""Looking at jobs; nothing here changes any."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from workers.protocol import Job, JobKind, JobStatus
from workers.store import tables
from workers.store.engine import Database
from workers.store.job_rows import find_row, to_jobs
from workers.store.text import is_storable
from workers.store.values import Attempt, AttemptOutcome, JobFilters, Page

_jobs = tables.jobs
_visible = _jobs.c.deleted_at.is_(None)


class JobReader:
    """Reads jobs. A `key_id` limits to that key's jobs; None is the administrator's view."""

    def __init__(self, db: Database) -> None:
        """Work on `db`."""
        self._db = db

    def get(self, job_id: str, *, key_id: str | None = None) -> Job:
        """One job.

        Raises:
            JobNotFound: it is absent, deleted, or not this key's.
        """
        with self._db.read() as conn:
            (job,) = to_jobs(conn, [find_row(conn, job_id, key_id)])
            return job

    def list(
        self,
        filters: JobFilters | None = None,
        *,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Page:
        """One page in id order, which is the order of creation.

        `after` is the id of the last job of the page before; it may have been deleted since.
        """
        filters = filters or JobFilters()
        if not _is_storable(filters, after):
            return Page([], has_more=False)
        query = sa.select(_jobs).where(_visible, *_conditions(filters)).limit(limit + 1)
        query = query.order_by(_jobs.c.id.desc() if order == "desc" else _jobs.c.id)
        if after is not None:
            query = query.where(_jobs.c.id < after if order == "desc" else _jobs.c.id > after)
        with self._db.read() as conn:
            rows = conn.execute(query).all()
            return Page(to_jobs(conn, rows[:limit]), has_more=len(rows) > limit)

    def changed_since(self, when: datetime, limit: int) -> builtins.list[Job]:
        """Jobs whose state or progress changed after `when`, earliest change first.

        More than `limit` come when several changed at the very same time, so the last
        `changed_at` is a safe next `when`. A change becomes visible when its transaction ends,
        slightly after its `changed_at`: callers look a little back and skip what they know.
        """
        newer = sa.select(_jobs).where(_visible, _jobs.c.changed_at > when)
        newer = newer.order_by(_jobs.c.changed_at, _jobs.c.id)
        with self._db.read() as conn:
            rows = list(conn.execute(newer.limit(limit)).all())
            if rows and len(rows) == limit:
                last = rows[-1]
                same_time = (_jobs.c.changed_at == last.changed_at, _jobs.c.id > last.id)
                ties = sa.select(_jobs).where(_visible, *same_time).order_by(_jobs.c.id)
                rows += conn.execute(ties).all()
            return to_jobs(conn, rows)

    def counts(self) -> dict[tuple[JobKind, JobStatus], int]:
        """How many jobs there are of each kind and status; absent means none."""
        group = (_jobs.c.kind, _jobs.c.status)
        query = sa.select(*group, sa.func.count()).where(_visible).group_by(*group)
        with self._db.read() as conn:
            rows = conn.execute(query).all()
        return {(JobKind(kind), JobStatus(status)): number for kind, status, number in rows}

    def attempts(self, job_id: str, *, key_id: str | None = None) -> builtins.list[Attempt]:
        """The runs of a job, first to last.

        Raises:
            JobNotFound: the job is absent, deleted, or not this key's.
        """
        runs = tables.attempts
        query = sa.select(runs).where(runs.c.job_id == job_id).order_by(runs.c.attempt)
        with self._db.read() as conn:
            find_row(conn, job_id, key_id)
            return [_attempt(row) for row in conn.execute(query)]


def _conditions(filters: JobFilters) -> builtins.list[sa.ColumnElement[bool]]:
    columns = (
        (_jobs.c.kind, filters.kind),
        (_jobs.c.project, filters.project),
        (_jobs.c.batch_id, filters.batch_id),
        (_jobs.c.model, filters.model),
        (_jobs.c.key_id, filters.key_id),
    )
    conditions = [column == value for column, value in columns if value is not None]
    if filters.status is not None:
        conditions.append(_jobs.c.status.in_(_statuses(filters.status)))
    if filters.tag is not None:
        tags = tables.job_tags
        tagged = sa.select(tags.c.job_id).where(tags.c.tag == filters.tag)
        conditions.append(_jobs.c.id.in_(tagged))
    return conditions


def _statuses(status: JobStatus | Sequence[JobStatus]) -> Sequence[JobStatus]:
    return [status] if isinstance(status, JobStatus) else status


def _is_storable(filters: JobFilters, after: str | None) -> bool:
    """Whether the texts of a caller can match anything at all."""
    texts = (filters.project, filters.tag, filters.batch_id, filters.model, filters.key_id, after)
    return all(is_storable(text) for text in texts if text is not None)


def _attempt(row: sa.Row[Any]) -> Attempt:
    return Attempt(
        attempt=row.attempt,
        worker=row.worker,
        started_at=row.started_at,
        ended_at=row.ended_at,
        outcome=None if row.outcome is None else AttemptOutcome(row.outcome),
    )
