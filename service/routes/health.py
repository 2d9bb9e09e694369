"""Liveness, readiness and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from service.auth import ReadKey
from service.catalog import Role, check_room, configured, is_heard, is_ready, known_workers
from service.context import Gateway, GatewayDep
from service.errors import NoRoom
from service.http.openapi import errors
from workers.protocol import JobStatus, WorkerFacts

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the gateway runs")
async def get_health(request: Request) -> dict[str, str]:
    """Answers as long as the process does; looks at nothing else."""
    return {"status": "ok", "version": request.app.version}


@router.get(
    "/readyz",
    summary="Whether everything is ready",
    response_model=None,
    responses={503: {"description": "Something is not ready; `not_ready` says what."}},
)
def get_readiness(gateway: GatewayDep) -> Response:
    """200 when redis, database and a worker for every configured model are there, else 503."""
    workers: list[WorkerFacts] = []
    not_ready: list[dict[str, str]] = []
    has_database = gateway.client.database_ok()
    if not gateway.client.redis_ok():
        not_ready.append({"what": "redis", "why": "does not answer"})
    if not has_database:
        not_ready.append({"what": "database", "why": "does not answer"})
    else:
        workers = known_workers(gateway)
    missing = _missing(gateway, workers)
    not_ready += missing
    if missing and has_database:
        not_ready += _without_room(gateway)
    counts = gateway.client.store.jobs.counts() if has_database else {}
    waiting = sum(n for (_, status), n in counts.items() if status == JobStatus.QUEUED)
    body = {
        "queue_depth": waiting,
        "status": "not_ready" if not_ready else "ready",
        "not_ready": not_ready,
        "workers": [_summary(worker) for worker in workers],
    }
    return JSONResponse(body, status_code=503 if not_ready else 200)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response, responses=errors())
def get_metrics(gateway: GatewayDep, _: ReadKey) -> Response:
    """Counters of this process, gauges of the deployment."""
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _missing(gateway: Gateway, workers: list[WorkerFacts]) -> list[dict[str, str]]:
    missing: list[dict[str, str]] = []
    roles: tuple[Role, ...] = ("llm", "video")
    for role in roles:
        model = configured(gateway, role)
        rows = [w for w in workers if w.role == role and w.model == model]
        if model is not None and not any(is_ready(worker) for worker in rows):
            why = _state(rows[0]) if rows else "not started"
            if rows and rows[0].error:
                why = f"{why}: {rows[0].error}"
            missing.append({"what": f"{role} worker", "model": model, "why": why})
    return missing


def _without_room(gateway: Gateway) -> list[dict[str, str]]:
    try:
        check_room(gateway)
    except NoRoom as error:
        return [{"what": "storage", "why": error.message}]
    return []


def _summary(worker: WorkerFacts) -> dict[str, Any]:
    return {
        "id": worker.id,
        "role": worker.role,
        "model": worker.model,
        "state": _state(worker),
        "devices": worker.devices,
        "error": worker.error,
        "started_at": worker.started_at.isoformat(),
        "beat_at": worker.beat_at.isoformat(),
    }


def _state(worker: WorkerFacts) -> str:
    return worker.state.value if is_heard(worker) else "lost"
