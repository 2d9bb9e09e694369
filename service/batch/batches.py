"""Making a batch and running parts of it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from service.auth import Principal
from service.batch.body import RawBatch, find_pictures, refuse
from service.batch.plan import BatchPlanner, PlannedShot
from service.context import Gateway
from service.errors import TooManyRequests
from service.schemas.batches import BatchView, ShotView, batch_view, row_of
from workers.batch_intake import BatchItem, known_jobs
from workers.protocol import Job, JobStatus
from workers.store.batches import Batch

_FAILED = {JobStatus.FAILED, JobStatus.DEAD}


def submit_batch(gateway: Gateway, principal: Principal, raw: RawBatch) -> BatchView:
    """Check everything; queue what changed or failed, unless it is a dry run.

    Batches are taken in one at a time, so that the same list sent twice at once runs once.
    Raises: BadRequest with every problem by line; QueueFull; Unavailable where the limits of the
    video model are not known yet.
    """
    planner = BatchPlanner(gateway, principal)
    images, missing = find_pictures(gateway, principal, raw)
    problems = [*raw.shots.problems, *missing, *planner.check(raw.shots.rows)]
    if (unavailable := planner.default_model_error()) is not None:
        raise unavailable
    if problems:
        raise refuse(problems)
    shots = planner.plan(raw.shots.rows, images)
    with gateway.batch_lock:
        if raw.is_dry_run:
            return _dry_view(gateway, principal, raw.name, shots)
        return _queue(gateway, principal, raw.name, shots)


def retry_failed(gateway: Gateway, principal: Principal, batch_id: str) -> Batch:
    """Queue the failed and dead jobs of a batch again; the others stay as they are.

    Raises: BatchNotFound.
    """
    store = gateway.client.store
    batch = store.batches.get(batch_id, key_id=principal.sees)
    for shot in batch.shots:
        if shot.job is not None and shot.job.status in _FAILED:
            gateway.client.retry(shot.job_id, principal.sees)
    return store.batches.get(batch_id, key_id=principal.sees)


def _queue(
    gateway: Gateway, principal: Principal, name: str, shots: list[PlannedShot]
) -> BatchView:
    bound = gateway.settings.max_queued
    if len(shots) > bound and len(shots) - len(_known(gateway, principal, name, shots)) > bound:
        text = f"The batch has {len(shots)} clips, but at most {bound} jobs may wait; split it."
        raise TooManyRequests(text, headers={"x-should-retry": "false"})
    seen: Counter[int] = Counter()
    items: list[BatchItem] = []
    for shot in shots:
        line = shot.row.line
        items.append(
            BatchItem(row_of(line, seen[line]), shot.fingerprint, shot.request, shot.labels)
        )
        seen[line] += 1
    created = gateway.client.submit_batch(name, items, key_id=principal.key_id)
    view = batch_view(created.batch, gateway)
    fresh = {job.id for job in created.fresh}
    for shown in view.shots:
        shown.is_reused = shown.job_id not in fresh
    _count(view)
    return view


def _dry_view(
    gateway: Gateway, principal: Principal, name: str, shots: list[PlannedShot]
) -> BatchView:
    known = _known(gateway, principal, name, shots)
    view = BatchView(
        id=None,
        name=name,
        status="empty",
        created_at=None,
        counts={},
        dry_run=True,
        shots=[
            ShotView(
                line=shot.row.line,
                shot=shot.row.label,
                seed=shot.row.seed,
                job_id=known[shot.fingerprint].id if shot.fingerprint in known else None,
                is_reused=shot.fingerprint in known,
                job=None,
            )
            for shot in shots
        ],
    )
    _count(view)
    return view


def _known(
    gateway: Gateway, principal: Principal, name: str, shots: Collection[PlannedShot]
) -> dict[str, Job]:
    """Jobs of earlier batches of this name that a submission would use again."""
    fingerprints = {shot.fingerprint for shot in shots}
    return known_jobs(gateway.client.store, name, fingerprints, key_id=principal.key_id)


def _count(view: BatchView) -> None:
    view.num_reused = sum(bool(shot.is_reused) for shot in view.shots)
    view.num_new = len(view.shots) - view.num_reused
