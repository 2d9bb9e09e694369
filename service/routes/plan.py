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
    """The plan of every worker, as it was computed when its model was loaded."""
    plans = [
        {"role": w.role, "model": w.model, "worker": w.id, "plan": w.plan}
        for w in known_workers(gateway)
    ]
    return {"object": "list", "data": plans}
