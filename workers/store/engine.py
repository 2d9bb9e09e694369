"""The connection to the database: SQLite with WAL, or PostgreSQL.

Reads see one snapshot. Writes are short and take what they need at once: on SQLite the one write
lock (BEGIN IMMEDIATE, so that a transaction never has to upgrade a read lock and fail), on
PostgreSQL row locks taken by SELECT … FOR UPDATE.
"""

from __future__ import annotations

import errno
import sqlite3
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from workers.errors import StoreUnusable

SQLITE_BUSY_TIMEOUT_MS = 60_000
_IMMEDIATE = "lanewise_immediate"
_POSTGRES_FULL = "53100"


class Database:
    """Transactions on one database; safe to share among threads, not among forks.

    Invariants: `read` and `write` are one transaction each, committed when the block ends and
    rolled back when it raises.
    """

    def __init__(self, database_url: str) -> None:
        """Prepare the engine; no connection is made yet.

        Raises:
            StoreUnusable: the URL is malformed, in memory, or of another kind of database.
        """
        self.url = _checked_url(database_url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine = _sqlite_engine(self.url) if self.is_sqlite else _postgres_engine(self.url)
        self._reader = self._engine if self.is_sqlite else _snapshots(self._engine)
        self._writer = self._engine.execution_options(**{_IMMEDIATE: True})

    @contextmanager
    def read(self) -> Generator[Connection, None, None]:
        """A transaction that only reads, on one snapshot."""
        with self._reader.begin() as conn:
            yield conn

    @contextmanager
    def write(self) -> Generator[Connection, None, None]:
        """A transaction that may write."""
        with self._writer.begin() as conn:
            yield conn

    def serialise(self, conn: Connection, what: str) -> None:
        """Until the transaction ends, be the only one that is inside `serialise(what)`.

        SQLite has one writer anyway; PostgreSQL gets an advisory lock.
        """
        if not self.is_sqlite:
            key = zlib.crc32(f"lanewise:{what}".encode())
            conn.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))

    def sqlite_file(self) -> Path | None:
        """The file of a SQLite database, None for PostgreSQL."""
        return Path(str(self.url.database)).absolute() if self.is_sqlite else None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def is_storage_full(error: BaseException) -> bool:
    """Whether an error of a file or a database says that there is no room left."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    if not isinstance(error, DBAPIError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _POSTGRES_FULL


def _checked_url(database_url: str) -> URL:
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise StoreUnusable(
            "The database URL cannot be parsed; write sqlite:///FILE or postgresql://HOST/NAME."
        ) from error
    backend = url.get_backend_name()
    if backend in {"postgres", "postgresql"}:
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreUnusable(f"{backend!r} databases are not supported; use SQLite or PostgreSQL.")
    if url.database in {None, "", ":memory:"}:
        raise StoreUnusable("The store is shared by processes: SQLite needs a file, not memory.")
    return url.set(drivername="sqlite+pysqlite")


def _postgres_engine(url: URL) -> Engine:
    return sa.create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=30)


def _snapshots(engine: Engine) -> Engine:
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _sqlite_engine(url: URL) -> Engine:
    engine = sa.create_engine(url, pool_size=10, max_overflow=30)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(dbapi_connection: Any, _record: object) -> None:  # noqa: ANN401 - any DBAPI
    dbapi_connection.isolation_level = None  # transactions begin where `_begin_sqlite` says so
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # an accepted job survives a power cut
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(conn: Connection) -> None:
    immediate = conn.get_execution_options().get(_IMMEDIATE, False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
