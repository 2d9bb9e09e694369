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

    `bound` lists (op, implementation, tier) as they run; `plan` is what the kernels of this
    version would give each layer.
    """
    plans = [
        {
            "role": worker.role,
            "model": worker.model,
            "worker": worker.id,
            "bound": worker.card.get("kernels"),
            "plan": worker.plan,
        }
        for worker in known_workers(gateway)
    ]
    return {"object": "list", "data": plans}
