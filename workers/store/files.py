"""Uploaded files: a row per key and content, the bytes in the artifact store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.errors import FileInUse, FileNotFound
from workers.protocol import JobStatus
from workers.store import tables
from workers.store.artifacts import ArtifactStore, input_path
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.own_row import own_row
from workers.store.text import check_text, is_storable


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An uploaded file; `path` is its place in the artifact store, sides are in pixels."""

    id: str
    key_id: str
    name: str
    media_type: str
    purpose: str
    bytes: int
    sha256: str
    width: int | None
    height: int | None
    created_at: datetime

    @property
    def path(self) -> str:
        """Where the bytes are; files with the same bytes share the place."""
        return input_path(self.sha256)


@dataclass(frozen=True, slots=True)
class FilePage:
    """One page of files in id order, and whether more follow."""

    files: list[StoredFile]
    has_more: bool


class FileStore:
    """Content-addressed uploads.

    Invariants: the same bytes under one key and purpose are one file; the bytes exist as long as
    any row names them; a key never sees the files of another.
    """

    def __init__(self, db: Database, clock: Clock, ids: IdSource, artifacts: ArtifactStore) -> None:
        """Keep rows in `db` and bytes in `artifacts`."""
        self._db = db
        self._clock = clock
        self._ids = ids
        self._artifacts = artifacts

    def put(
        self,
        data: bytes,
        *,
        name: str,
        media_type: str,
        key_id: str,
        purpose: str,
        width: int | None = None,
        height: int | None = None,
    ) -> StoredFile:
        """Keep `data`; the same bytes again give the file that is already there.

        The name is only a label and is never used as a path.

        Raises:
            InvalidText: a text holds a NUL.
        """
        for field, text in {"name": name, "media_type": media_type, "purpose": purpose}.items():
            check_text(field, text)
        fresh = StoredFile(
            id=self._ids.make("file-"),
            key_id=key_id,
            name=name,
            media_type=media_type,
            purpose=purpose,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            width=width,
            height=height,
            created_at=self._clock(),
        )
        if not self._artifacts.exists(fresh.path):
            self._artifacts.write_bytes(data, fresh.path)
        with self._db.write() as conn:
            self._db.serialise(conn, f"file {fresh.sha256}")
            stored = self._insert(conn, fresh)
            if not self._artifacts.exists(fresh.path):  # a delete came between
                self._artifacts.write_bytes(data, fresh.path)
        return stored

    def get(self, file_id: str, *, key_id: str | None = None) -> StoredFile:
        """The file, if it is of this key (None: of any).

        Raises:
            FileNotFound: it is not there or not this key's.
        """
        with self._db.read() as conn:
            return _find(conn, file_id, key_id)

    def open(self, file_id: str, *, key_id: str | None = None) -> BinaryIO:
        """A seekable reader of the file's bytes.

        Raises:
            FileNotFound: it is not there or not this key's.
        """
        return self._artifacts.open(self.get(file_id, key_id=key_id).path)

    def list(
        self,
        *,
        key_id: str | None = None,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        order: Literal["asc", "desc"] = "desc",
    ) -> FilePage:
        """One page of files in id order, which is the order of their making."""
        if not all(is_storable(text) for text in (purpose, after) if text is not None):
            return FilePage([], has_more=False)
        files = tables.files
        query = sa.select(files).limit(limit + 1)
        query = query.order_by(files.c.id.desc() if order == "desc" else files.c.id)
        if key_id is not None:
            query = query.where(files.c.key_id == key_id)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        if after is not None:
            query = query.where(files.c.id < after if order == "desc" else files.c.id > after)
        with self._db.read() as conn:
            found = [_file(row) for row in conn.execute(query)]
        return FilePage(found[:limit], has_more=len(found) > limit)

    def delete(self, file_id: str, *, key_id: str | None = None) -> None:
        """Remove the file, and its bytes when no other file has the same.

        Raises:
            FileNotFound: it is not there or not this key's.
            FileInUse: a job that has not ended starts from it.
        """
        sha256 = self.get(file_id, key_id=key_id).sha256
        files = tables.files
        same_bytes = sa.select(sa.func.count()).where(files.c.sha256 == sha256)
        with self._db.write() as conn:
            self._db.serialise(conn, f"file {sha256}")
            _check_unused(conn, file_id)
            conn.execute(sa.delete(files).where(files.c.id == file_id))
            if conn.execute(same_bytes).scalar_one() == 0:
                self._artifacts.delete([input_path(sha256)])

    def _insert(self, conn: Connection, fresh: StoredFile) -> StoredFile:
        files = tables.files
        same = sa.select(files).where(
            files.c.key_id == fresh.key_id,
            files.c.sha256 == fresh.sha256,
            files.c.purpose == fresh.purpose,
        )
        row = conn.execute(same).one_or_none()
        if row is not None:
            return _file(row)
        values = {column.name: getattr(fresh, column.name) for column in files.columns}
        conn.execute(sa.insert(files).values(values))
        return fresh


def _check_unused(conn: Connection, file_id: str) -> None:
    """Return if no job that has not ended starts from the file; such jobs are few."""
    jobs = tables.jobs
    open_states = [status for status in JobStatus if not status.is_terminal]
    query = sa.select(jobs.c.id).where(
        jobs.c.status.in_(open_states), jobs.c.request.contains(f'"{file_id}"', autoescape=True)
    )
    job_id = conn.execute(query.order_by(jobs.c.id).limit(1)).scalar_one_or_none()
    if job_id is not None:
        raise FileInUse(file_id, job_id)


def _find(conn: Connection, file_id: str, key_id: str | None) -> StoredFile:
    row = own_row(conn, tables.files, file_id, key_id)
    if row is None:
        raise FileNotFound(file_id)
    return _file(row)


def _file(row: sa.Row[Any]) -> StoredFile:
    return StoredFile(**{column.name: getattr(row, column.name) for column in tables.files.columns})
