"""Webhooks that wait for delivery: written with the state they tell of, sent later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from workers.protocol import Job
from workers.store import tables
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event for one receiver; `id` is the webhook-id and `body` the bytes, same at each try."""

    id: str
    job_id: str
    event_type: str
    url: str
    body: bytes
    num_tries: int
    created_at: datetime
    delivered_at: datetime | None
    last_error: str | None


class WebhookOutbox:
    """Events to send, at least once each.

    Invariants: an event is due until it is delivered or given up; while one sender has it, others
    do not get it.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        """Work on `db`."""
        self._db = db
        self._clock = clock

    def due(self, limit: int, *, lease_s: float = 60.0) -> list[OutboxEvent]:
        """Take up to `limit` events to send now; they come back after `lease_s` if forgotten."""
        outbox, now = tables.webhook_outbox, self._clock()
        query = sa.select(outbox).where(outbox.c.due_at <= now).order_by(outbox.c.due_at)
        query = query.limit(limit).with_for_update(skip_locked=True)
        with self._db.write() as conn:
            events = [_event(row) for row in conn.execute(query)]
            taken = outbox.c.id.in_([event.id for event in events])
            back_at = now + timedelta(seconds=lease_s)
            conn.execute(sa.update(outbox).where(taken).values(due_at=back_at))
        return events

    def delivered(self, event_id: str) -> None:
        """The receiver has it: never send it again."""
        now = self._clock()
        self._end_try(event_id, due_at=None, delivered_at=now, last_error=None)

    def failed(self, event_id: str, error: str, retry_at: datetime | None) -> None:
        """The receiver did not take it: send again at `retry_at`, or give up when None."""
        safe_error = error.replace("\0", "\N{REPLACEMENT CHARACTER}")
        self._end_try(event_id, due_at=retry_at, last_error=safe_error)

    def refused(self, url: str, error: str) -> int:
        """The receiver wants no more (410 Gone): give up all that wait for `url`; how many."""
        outbox = tables.webhook_outbox
        waiting = sa.update(outbox).where(outbox.c.url == url, outbox.c.due_at.is_not(None))
        with self._db.write() as conn:
            return conn.execute(waiting.values(due_at=None, last_error=error)).rowcount

    def of_job(self, job_id: str) -> list[OutboxEvent]:
        """All events of a job in the order they happened, also after the job is deleted."""
        outbox = tables.webhook_outbox
        query = sa.select(outbox).where(outbox.c.job_id == job_id).order_by(outbox.c.id)
        with self._db.read() as conn:
            return [_event(row) for row in conn.execute(query)]

    def _end_try(self, event_id: str, **values: object) -> None:
        outbox = tables.webhook_outbox
        waiting = outbox.c.delivered_at.is_(None)
        update = sa.update(outbox).where(outbox.c.id == event_id, waiting)
        with self._db.write() as conn:
            conn.execute(update.values(num_tries=outbox.c.num_tries + 1, **values))


def write_event(conn: Connection, job: Job, now: datetime, ids: IdSource) -> None:
    """Put the event of a terminal job into the outbox, in the transaction that ended the job."""
    if job.labels.webhook_url is None:
        return
    event_id, event_type = ids.make("msg_"), f"job.{job.status}"
    payload = {"id": event_id, "type": event_type, "timestamp": now.isoformat(), "data": _data(job)}
    row = {
        "id": event_id,
        "job_id": job.id,
        "event_type": event_type,
        "url": job.labels.webhook_url,
        "body": json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode(),
        "num_tries": 0,
        "created_at": now,
        "due_at": now,
    }
    conn.execute(sa.insert(tables.webhook_outbox).values(row))


def _data(job: Job) -> dict[str, Any]:
    """What a receiver learns: where the job stands and what it made; not its prompt."""
    shown = {"id", "kind", "status", "attempt", "created_at", "started_at", "finished_at"}
    data = job.model_dump(mode="json", include=shown | {"error", "batch_id"})
    data["model"] = job.request.model
    data |= {"project": job.labels.project, "shot": job.labels.shot, "tags": list(job.labels.tags)}
    data["artifacts"] = [
        artifact.model_dump(include={"name", "media_type", "bytes", "sha256"})
        for artifact in job.artifacts
    ]
    return data


def _event(row: sa.Row[Any]) -> OutboxEvent:
    return OutboxEvent(
        id=row.id,
        job_id=row.job_id,
        event_type=row.event_type,
        url=row.url,
        body=bytes(row.body),
        num_tries=row.num_tries,
        created_at=row.created_at,
        delivered_at=row.delivered_at,
        last_error=row.last_error,
    )
