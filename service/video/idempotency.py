"""The same request sent twice makes one job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from fastapi import Request

from service.errors import BadRequest
from workers.protocol import Job, JobLabels, VideoJobRequest
from workers.store import Store
from workers.store.values import JobFilters

RETRY_WINDOW = timedelta(minutes=10)
MAX_KEY_CHARS = 255
_RETRY_HEADER = "x-stainless-retry-count"
_SCANNED = 100


def idempotency_key(request: Request) -> str | None:
    """The caller's `Idempotency-Key`, if there is one.

    Raises: BadRequest for one that cannot be kept.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY_CHARS or not key.isprintable():
        raise BadRequest(
            f"Idempotency-Key has {len(key)} characters; use 1 to {MAX_KEY_CHARS} printable ones.",
            param="Idempotency-Key",
        )
    return key


def is_resent(request: Request) -> bool:
    """Whether OpenAI's client says that it sends this request again."""
    return request.headers.get(_RETRY_HEADER, "0") not in {"", "0"}


def fingerprint(values: Mapping[str, object]) -> str:
    """A hash of values that does not depend on their order."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def earlier_job(
    store: Store, video: VideoJobRequest, labels: JobLabels, *, key_id: str, has_seed: bool
) -> Job | None:
    """The newest job of the last ten minutes that this same request has already made.

    Where the request names no seed, the seed that was drawn for the earlier job does not count.
    """
    oldest = datetime.now(UTC) - RETRY_WINDOW
    filters = JobFilters(key_id=key_id, model=video.model)
    for job in store.jobs.list(filters, limit=_SCANNED, order="desc").jobs:
        theirs = job.request if has_seed else job.request.model_copy(update={"seed": video.seed})
        if job.created_at >= oldest and theirs == video and job.labels == labels:
            return job
    return None
