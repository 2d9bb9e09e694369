"""GET /v1/engine/stats: what the engines count."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.auth import AnyKey
from service.catalog import is_heard, known_workers
from service.context import GatewayDep
from service.http.openapi import errors

router = APIRouter(tags=["engine"])


@router.get("/v1/engine/stats", summary="Show the engines' counters", responses=errors())
def get_stats(gateway: GatewayDep, _: AnyKey) -> dict[str, Any]:
    """Every worker's counters as of its last beat, at most a few seconds ago.

    Running and waiting answers, tokens, pages, cache hits and misses by cause, the shortest
    prefix that can be reused, preemptions, accepted and rejected drafts. The same numbers are at
    `/metrics` as `lanewise_engine_*`.
    """
    rows = [
        {
            "role": worker.role,
            "model": worker.model,
            "worker": worker.id,
            "state": worker.state.value if is_heard(worker) else "lost",
            "hash": worker.plan_hash,
            "beat_at": worker.beat_at.isoformat(),
            "card": worker.card,
            "stats": worker.stats,
        }
        for worker in known_workers(gateway)
    ]
    return {"object": "list", "data": rows}
