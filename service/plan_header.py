"""The launch plan's hash in answers: what ran can be named, and compared."""

from __future__ import annotations

from workers.protocol import WorkerFacts

PLAN_HEADER = "x-lanewise-plan"


def plan_headers(worker: WorkerFacts | None) -> dict[str, str]:
    """The header of an answer that `worker` gives; empty where it has no plan."""
    found = None if worker is None else worker.plan_hash
    return {} if found is None else {PLAN_HEADER: found}


def fingerprint(worker: WorkerFacts) -> str | None:
    """OpenAI's `system_fingerprint`, of the same hash."""
    return None if worker.plan_hash is None else f"fp_{worker.plan_hash[:16]}"
