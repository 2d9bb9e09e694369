"""Shot lists: only what changed, failed or is new makes a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.protocol import JobStatus
from workers.store.batches import Shot

if TYPE_CHECKING:
    from workers.protocol import Job, JobLabels, VideoJobRequest
    from workers.store import Store
    from workers.store.batches import Batch

_RUN_AGAIN = {JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DEAD, JobStatus.CANCELLING}


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A row of a shot list; equal fingerprints mean equal pixels."""

    row: int
    fingerprint: str
    request: VideoJobRequest
    labels: JobLabels


@dataclass(frozen=True, slots=True)
class BatchCreated:
    """The batch, and the jobs that were made for it; its other shots share earlier jobs."""

    batch: Batch
    fresh: tuple[Job, ...]


def create_batch(
    store: Store,
    name: str,
    items: Sequence[BatchItem],
    *,
    key_id: str,
    max_queued: int,
) -> BatchCreated:
    """Keep a batch and queue the jobs it needs, all or none.

    A shot whose fingerprint is known under this key and name keeps its job, unless that failed,
    was cancelled or is dead. Equal fingerprints within the list share one job.

    Raises: QueueFull, InvalidText.
    """
    known = known_jobs(store, name, [item.fingerprint for item in items], key_id=key_id)
    missing = list({i.fingerprint: i for i in items if i.fingerprint not in known}.values())
    batch_id = store.batches.make_id()
    fresh = store.jobs.create_many(
        [(item.request, item.labels) for item in missing],
        key_id=key_id,
        batch_id=batch_id,
        max_queued=max_queued,
    )
    made = {item.fingerprint: job.id for item, job in zip(missing, fresh, strict=True)}
    job_ids = {text: job.id for text, job in known.items()} | made
    shots = [Shot(item.row, item.fingerprint, job_ids[item.fingerprint]) for item in items]
    batch = store.batches.create(name=name, key_id=key_id, shots=shots, batch_id=batch_id)
    return BatchCreated(batch, tuple(fresh))


def known_jobs(
    store: Store, name: str, fingerprints: Collection[str], *, key_id: str
) -> dict[str, Job]:
    """By fingerprint, the jobs of earlier lists of this key and name that need not run again."""
    found = store.batches.find_shots(key_id=key_id, name=name, fingerprints=set(fingerprints))
    return {text: job for text, job in found.items() if job.status not in _RUN_AGAIN}
