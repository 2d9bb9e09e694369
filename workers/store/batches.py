"""Batches: named shot lists, one job per shot; a later batch may share the jobs of an earlier."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.errors import BatchNotFound
from workers.protocol import Job, JobStatus
from workers.store import tables
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.job_rows import load_jobs
from workers.store.own_row import own_row
from workers.store.text import check_text, is_storable

_batches, _shots, _jobs = tables.batches, tables.shots, tables.jobs


@dataclass(frozen=True, slots=True)
class Shot:
    """A row of a shot list: its place, what its pixels depend on, and the job that makes it."""

    row: int
    fingerprint: str
    job_id: str


@dataclass(frozen=True, slots=True)
class BatchShot:
    """A shot with its job as it is now; None when the job was deleted."""

    row: int
    fingerprint: str
    job_id: str
    job: Job | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it is now; `counts` has a number for each status that occurs."""

    id: str
    name: str
    key_id: str
    created_at: datetime
    counts: Mapping[JobStatus, int]
    shots: tuple[BatchShot, ...]


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch in a list: the numbers without the shots."""

    id: str
    name: str
    created_at: datetime
    num_shots: int
    counts: Mapping[JobStatus, int]


class BatchStore:
    """Shot lists and their state, which is always read from the jobs and never kept twice."""

    def __init__(self, db: Database, clock: Clock, ids: IdSource) -> None:
        """Work on `db`."""
        self._db = db
        self._clock = clock
        self._ids = ids

    def make_id(self) -> str:
        """An id for a batch whose jobs are made before it."""
        return self._ids.make("batch_")

    def create(
        self, *, name: str, key_id: str, shots: Sequence[Shot], batch_id: str | None = None
    ) -> Batch:
        """Keep a batch; `shots` may name jobs of earlier batches.

        Raises:
            InvalidText: the name cannot be stored.
        """
        check_text("name", name)
        batch_id = batch_id or self.make_id()
        row = {"id": batch_id, "name": name, "key_id": key_id, "created_at": self._clock()}
        with self._db.write() as conn:
            conn.execute(sa.insert(_batches).values(row))
            if shots:
                conn.execute(sa.insert(_shots), [_values(batch_id, shot) for shot in shots])
            return _load(conn, batch_id, key_id)

    def get(self, batch_id: str, *, key_id: str | None = None) -> Batch:
        """The batch with all shots in row order.

        Raises:
            BatchNotFound: it is absent or not this key's.
        """
        with self._db.read() as conn:
            return _load(conn, batch_id, key_id)

    def list(
        self, *, key_id: str | None = None, after: str | None = None, limit: int = 20
    ) -> builtins.list[BatchSummary]:
        """Batches, newest first, beginning after the id `after`: two queries for any number."""
        if after is not None and not is_storable(after):
            return []
        query = sa.select(_batches).order_by(_batches.c.id.desc()).limit(limit)
        if key_id is not None:
            query = query.where(_batches.c.key_id == key_id)
        if after is not None:
            query = query.where(_batches.c.id < after)
        with self._db.read() as conn:
            rows = conn.execute(query).all()
            numbers = _numbers(conn, [row.id for row in rows])
        return [_summary(row, numbers[row.id]) for row in rows]

    def find_shots(
        self, *, key_id: str, name: str, fingerprints: Collection[str]
    ) -> dict[str, Job]:
        """For each fingerprint, the job of its newest shot in a batch of this key and name.

        Fingerprints never seen, and those whose newest job was deleted, are absent: what is
        absent or did not succeed has to run again.
        """
        if not is_storable(name):
            return {}
        query = sa.select(_shots.c.fingerprint, _shots.c.job_id)
        query = query.join(_batches, _batches.c.id == _shots.c.batch_id)
        query = query.where(_batches.c.key_id == key_id, _batches.c.name == name)
        query = query.order_by(_batches.c.id, _shots.c.row)
        with self._db.read() as conn:
            newest = {
                fingerprint: job_id
                for fingerprint, job_id in conn.execute(query)
                if fingerprint in fingerprints
            }
            jobs = _visible_jobs(conn, newest.values())
        return {text: jobs[job_id] for text, job_id in newest.items() if job_id in jobs}


def _values(batch_id: str, shot: Shot) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "row": shot.row,
        "fingerprint": shot.fingerprint,
        "job_id": shot.job_id,
    }


def _load(conn: Connection, batch_id: str, key_id: str | None) -> Batch:
    row = own_row(conn, _batches, batch_id, key_id)
    if row is None:
        raise BatchNotFound(batch_id)
    query = sa.select(_shots).where(_shots.c.batch_id == batch_id).order_by(_shots.c.row)
    rows = conn.execute(query).all()
    jobs = _visible_jobs(conn, [shot.job_id for shot in rows])
    shots = tuple(
        BatchShot(shot.row, shot.fingerprint, shot.job_id, jobs.get(shot.job_id)) for shot in rows
    )
    counts = Counter(shot.job.status for shot in shots if shot.job is not None)
    return Batch(row.id, row.name, row.key_id, row.created_at, counts, shots)


def _visible_jobs(conn: Connection, job_ids: Collection[str]) -> dict[str, Job]:
    return {job.id: job for job in load_jobs(conn, sorted(set(job_ids)), hide_deleted=True)}


def _numbers(conn: Connection, batch_ids: Sequence[str]) -> dict[str, Counter[JobStatus | None]]:
    """Shots per status (None: the job was deleted) of each batch."""
    numbers: dict[str, Counter[JobStatus | None]] = {batch: Counter() for batch in batch_ids}
    is_job = (_jobs.c.id == _shots.c.job_id) & _jobs.c.deleted_at.is_(None)
    query = sa.select(_shots.c.batch_id, _jobs.c.status, sa.func.count())
    query = query.select_from(_shots.outerjoin(_jobs, is_job))
    query = query.where(_shots.c.batch_id.in_(batch_ids))
    for batch_id, status, number in conn.execute(query.group_by(_shots.c.batch_id, _jobs.c.status)):
        numbers[batch_id][None if status is None else JobStatus(status)] = number
    return numbers


def _summary(row: sa.Row[Any], numbers: Counter[JobStatus | None]) -> BatchSummary:
    counts = {status: number for status, number in numbers.items() if status is not None}
    return BatchSummary(row.id, row.name, row.created_at, numbers.total(), counts)
