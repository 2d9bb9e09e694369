"""The tables. `migrations/` builds the same ones; a test compares the two.

Structured values (requests, labels, progress) are JSON text, since nothing searches inside them;
what lists filter and sort by has its own column. `jobs.rank` is the priority: the claim order
(rank, id) is ascending in both, so one index serves it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)


class UtcTime(TypeDecorator[datetime]):
    """Aware datetimes in UTC, on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times; turn others into UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the store takes aware times only.")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back UTC; SQLite keeps no zone, and what it holds is UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _optional_text(name: str) -> Column[str | None]:
    return Column(name, Text, nullable=True)


def _time(name: str) -> Column[datetime]:
    return Column(name, UtcTime, nullable=False)


def _optional_time(name: str) -> Column[datetime | None]:
    return Column(name, UtcTime, nullable=True)


def _of_job() -> Column[str]:
    return Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    _text("kind"),
    _text("model"),
    _text("status"),
    Column("rank", Integer, nullable=False),
    _text("request"),
    _text("labels"),
    _text("project"),
    _optional_text("progress"),
    _optional_text("error"),
    Column("attempt", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    _text("key_id"),
    _optional_text("batch_id"),
    _time("created_at"),
    _optional_time("started_at"),
    _optional_time("finished_at"),
    _time("changed_at"),
    _optional_time("lease_until"),
    _time("sent_at"),
    _optional_time("deleted_at"),
    Index("ix_jobs_claim", "model", "status", "rank", "id"),
    Index("ix_jobs_key", "key_id", "id"),
    Index("ix_jobs_status", "status", "id"),
    Index("ix_jobs_lease", "status", "lease_until"),
    Index("ix_jobs_sent", "status", "sent_at"),
    Index("ix_jobs_batch", "batch_id", "id"),
    Index("ix_jobs_project", "project", "id"),
    Index("ix_jobs_changed", "changed_at", "id"),
    Index("ix_jobs_counts", "kind", "status", "deleted_at"),
    Index("ix_jobs_deleted", "deleted_at"),
)

job_tags = Table(
    "job_tags",
    metadata,
    _of_job(),
    Column("tag", Text, primary_key=True),
    Index("ix_job_tags_tag", "tag", "job_id"),
)

attempts = Table(
    "attempts",
    metadata,
    _of_job(),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    _text("worker"),
    _time("started_at"),
    _optional_time("ended_at"),
    _optional_text("outcome"),
)

artifacts = Table(
    "artifacts",
    metadata,
    _of_job(),
    Column("place", Integer, primary_key=True, autoincrement=False),
    _text("name"),
    _text("media_type"),
    Column("bytes", BigInteger, nullable=False),
    _text("sha256"),
    _text("path"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    _text("fingerprint"),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    _time("created_at"),
    Index("ix_idempotency_keys_job", "job_id"),
    Index("ix_idempotency_keys_created", "created_at"),
)

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    _text("key_id"),
    _text("sha256"),
    _text("purpose"),
    _text("name"),
    _text("media_type"),
    Column("bytes", BigInteger, nullable=False),
    Column("width", Integer, nullable=True),
    Column("height", Integer, nullable=True),
    _time("created_at"),
    UniqueConstraint("key_id", "sha256", "purpose", name="uq_files_content"),
    Index("ix_files_key", "key_id", "id"),
    Index("ix_files_sha256", "sha256"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    _text("name"),
    _text("key_id"),
    _time("created_at"),
    Index("ix_batches_key", "key_id", "id"),
    Index("ix_batches_name", "key_id", "name", "id"),
)

shots = Table(
    "shots",
    metadata,
    Column("batch_id", Text, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("row", Integer, primary_key=True, autoincrement=False),
    _text("fingerprint"),
    _text("job_id"),
    Index("ix_shots_fingerprint", "fingerprint"),
)

webhook_outbox = Table(
    "webhook_outbox",
    metadata,
    Column("id", Text, primary_key=True),
    _text("job_id"),
    _text("event_type"),
    _text("url"),
    Column("body", LargeBinary, nullable=False),
    Column("num_tries", Integer, nullable=False),
    _time("created_at"),
    _optional_time("due_at"),
    _optional_time("delivered_at"),
    _optional_text("last_error"),
    Index("ix_webhook_outbox_due", "due_at"),
    Index("ix_webhook_outbox_job", "job_id"),
    Index("ix_webhook_outbox_url", "url"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    _text("name"),
    _text("prefix"),
    _text("sha256"),
    _text("scopes"),
    _time("created_at"),
    _optional_time("last_used_at"),
    _optional_time("revoked_at"),
    UniqueConstraint("sha256", name="uq_api_keys_sha256"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    _text("facts"),
    _time("beat_at"),
)
