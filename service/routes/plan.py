"""GET /v1/engine/plan: which kernels, pages and mechanisms the loaded models run, and why."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.auth import AnyKey
from service.catalog import known_workers
from service.context import GatewayDep
from service.http.openapi import errors

router = APIRouter(tags=["engine"])


@router.get("/v1/engine/plan", summary="Show the launch plans", responses=errors())
def get_plan(gateway: GatewayDep, _: AnyKey) -> dict[str, Any]:
    """Every worker's plan, made when its model was loaded, and what the engine really bound.

    `hash` is what the header `x-lanewise-plan` of an answer holds. `bound` lists (op,
    implementation, tier) as they run; `decisions` are all choices of the engine (kernels, form of
    the weights, cache, speculation) with their reasons; `plan` is what the kernels of this version
    would give each layer.
    """
    plans = [
        {
            "role": worker.role,
            "model": worker.model,
            "worker": worker.id,
            "hash": worker.plan_hash,
            "bound": worker.card.get("kernels"),
            "decisions": worker.decisions,
            "plan": worker.plan,
        }
        for worker in known_workers(gateway)
    ]
    return {"object": "list", "data": plans}
