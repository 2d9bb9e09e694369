"""The store: everything durable, behind one object."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from workers.store.artifacts import ArtifactStore
from workers.store.batches import BatchStore
from workers.store.clock import Clock, utc_now
from workers.store.engine import Database
from workers.store.files import FileStore
from workers.store.ids import IdSource
from workers.store.jobs import JobStore
from workers.store.keys import KeyStore
from workers.store.migrate import migrate
from workers.store.webhooks import WebhookOutbox
from workers.store.workers import WorkerDirectory


class Store:
    """The database and the artifact store of one deployment.

    Safe to share among threads; a forked child opens its own.
    """

    def __init__(self, db: Database, artifacts: ArtifactStore, clock: Clock) -> None:
        """Take an open and migrated database; `open_store` is the usual way here."""
        ids = IdSource(clock)
        self._db = db
        self.artifacts = artifacts
        self.jobs = JobStore(db, clock, ids)
        self.keys = KeyStore(db, clock, ids)
        self.files = FileStore(db, clock, ids, artifacts)
        self.batches = BatchStore(db, clock, ids)
        self.webhooks = WebhookOutbox(db, clock)
        self.workers = WorkerDirectory(db, clock)

    def ping(self) -> None:
        """Ask the database for an answer; raises SQLAlchemyError when it gives none."""
        with self._db.read() as conn:
            conn.exec_driver_sql("SELECT 1")

    def close(self) -> None:
        """Close all connections; calling twice is fine."""
        self._db.close()

    def __enter__(self) -> Self:
        """Use the store as a context that closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()


def open_store(database_url: str, artifact_url: str, *, clock: Clock = utc_now) -> Store:
    """Open the store, creating or upgrading its schema; several processes may do so at once.

    Args:
        database_url: `sqlite:///FILE` or `postgresql://HOST/NAME`.
        artifact_url: a folder, or an fsspec URL such as `s3://bucket/prefix`.
        clock: gives aware UTC times; leases and order depend on it, so hosts that share a
            PostgreSQL database must have their clocks in step.

    Raises:
        StoreUnusable: the database cannot be opened or has a newer schema.
    """
    db = Database(database_url)
    migrate(db)
    return Store(db, ArtifactStore(artifact_url), clock)
