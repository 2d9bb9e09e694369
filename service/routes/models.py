"""GET /v1/models and one of them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.auth import AnyKey
from service.catalog import configured, is_heard, known_workers
from service.context import Gateway, GatewayDep
from service.errors import NotFound, shown
from service.http.openapi import errors
from service.schemas.models import ModelList, ModelView
from workers.protocol import WorkerFacts

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="List the models", responses=errors())
def list_models(gateway: GatewayDep, _: AnyKey) -> ModelList:
    """Every model that a worker has published or that is configured, with its limits.

    A LoRA adapter is listed under its own name, with the model it changes as `parent`.
    """
    return ModelList(data=list(_models(gateway).values()))


@router.get("/v1/models/{model:path}", summary="Show one model", responses=errors(404))
def get_model(model: str, gateway: GatewayDep, _: AnyKey) -> ModelView:
    """One model; names may hold slashes."""
    found = _models(gateway).get(model)
    if found is None:
        raise NotFound(
            f"The model {shown(model)} does not exist here.", param="model", code="model_not_found"
        )
    return found


def _models(gateway: Gateway) -> dict[str, ModelView]:
    models: dict[str, ModelView] = {}
    for worker in known_workers(gateway):
        models.setdefault(worker.model, _of_worker(worker))
        for adapter in worker.llm.adapters if worker.llm is not None else ():
            view = _of_worker(worker).model_copy(update={"id": adapter, "parent": worker.model})
            models.setdefault(adapter, view)
    for role in ("llm", "video"):
        name = configured(gateway, role)
        if name is not None:
            models.setdefault(name, ModelView(id=name, created=0, role=role, state="absent"))
    return models


def _of_worker(worker: WorkerFacts) -> ModelView:
    limits: Any = worker.llm or worker.video
    return ModelView(
        id=worker.model,
        created=int(worker.started_at.timestamp()),
        role=worker.role,
        state=worker.state.value if is_heard(worker) else "lost",
        devices=worker.devices,
        source=worker.source,
        error=worker.error,
        limits=None if limits is None else limits.model_dump(),
        card=worker.card,
    )
