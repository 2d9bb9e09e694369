"""Who works: the facts that worker processes publish about themselves."""

from __future__ import annotations

import builtins
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from workers.errors import StorageFull
from workers.protocol import WorkerFacts
from workers.store import tables
from workers.store.clock import Clock
from workers.store.engine import Database, is_storage_full


class WorkerDirectory:
    """The last word of every worker process; the id of a worker is unique to its process."""

    def __init__(self, db: Database, clock: Clock) -> None:
        """Work on `db`; ages are measured against `clock`."""
        self._db = db
        self._clock = clock
        self._parsed: dict[str, WorkerFacts] = {}

    def publish(self, facts: WorkerFacts) -> None:
        """Put `facts` in the place of what this worker said before."""
        workers = tables.workers
        values = {"facts": facts.model_dump_json(), "beat_at": facts.beat_at}
        with self._db.write() as conn:
            self._db.serialise(conn, f"worker {facts.id}")
            update = sa.update(workers).where(workers.c.id == facts.id).values(values)
            if conn.execute(update).rowcount == 0:
                conn.execute(sa.insert(workers).values(values | {"id": facts.id}))

    def list(self, max_age_s: float | None = None) -> builtins.list[WorkerFacts]:
        """All workers in id order; with `max_age_s` only those heard of since."""
        workers = tables.workers
        query = sa.select(workers.c.facts).order_by(workers.c.id)
        if max_age_s is not None:
            oldest = self._clock() - timedelta(seconds=max_age_s)
            query = query.where(workers.c.beat_at >= oldest)
        with self._db.read() as conn:
            texts = conn.execute(query).scalars().all()
        # A row holds a whole plan and changes every few seconds, but is read for every request.
        seen = self._parsed
        parsed = {t: seen.get(t) or WorkerFacts.model_validate_json(t) for t in texts}
        self._parsed = parsed
        return list(parsed.values())

    def check_room(self) -> None:
        """Write every row again, since that is what a beat needs room for; nothing changes.

        SQLite writes no page for a value that is the same, so a space comes and goes.
        Raises: StorageFull when there is none, so that the living cannot be heard.
        """
        workers = tables.workers
        try:
            with self._db.write() as conn:
                conn.execute(sa.update(workers).values(facts=workers.c.facts + " "))
                conn.execute(sa.update(workers).values(facts=sa.func.rtrim(workers.c.facts)))
        except SQLAlchemyError as error:
            if is_storage_full(error):
                raise StorageFull from error
            raise

    def forget(self, worker_id: str) -> None:
        """Remove a worker; an absent one is no error."""
        with self._db.write() as conn:
            conn.execute(sa.delete(tables.workers).where(tables.workers.c.id == worker_id))
