"""Jobs as they change, over server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from service.auth import LinkKey
from service.context import Gateway, GatewayDep
from service.events import Listener
from service.http.openapi import errors
from service.http.stream import KEEP_ALIVE, KEEP_ALIVE_S, EventStream, sse
from service.routes.jobs import JobId
from service.schemas.jobs import job_view
from workers.errors import JobNotFound
from workers.protocol import Job, JobStatus

router = APIRouter(tags=["jobs"])
_QUEUE_LOOK_S = 2.0
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Events `job` and `deleted`.", "content": {"text/event-stream": {}}}
}


@router.get("/events", summary="Follow all jobs", response_model=None, responses=errors() | _STREAM)
async def follow_jobs(gateway: GatewayDep, key: LinkKey) -> Response:
    """Every change of every job that this key sees, as the whole job."""
    listener = gateway.events.listen(key_id=key.sees)
    return EventStream(_changes(gateway, listener), on_close=lambda: gateway.events.leave(listener))


@router.get(
    "/jobs/{job_id}/events",
    summary="Follow a job",
    response_model=None,
    responses=errors(404) | _STREAM,
)
async def follow_job(job_id: JobId, gateway: GatewayDep, key: LinkKey) -> Response:
    """The whole job now and at each change, until it has ended."""
    listener = gateway.events.listen(key_id=key.sees, job_id=job_id)
    try:
        job = await run_in_threadpool(gateway.client.store.jobs.get, job_id, key_id=key.sees)
    except BaseException:
        gateway.events.leave(listener)
        raise
    return EventStream(
        _one(gateway, listener, job), on_close=lambda: gateway.events.leave(listener)
    )


async def _changes(gateway: Gateway, listener: Listener) -> AsyncIterator[bytes]:
    yield KEEP_ALIVE  # sends the headers, so that the reader knows it is connected
    while not listener.is_over:
        changes = await listener.take(KEEP_ALIVE_S)
        if not changes:
            yield KEEP_ALIVE
        for job_id, job in changes.items():
            yield _gone_event(job_id) if job is None else _job_event(gateway, job)


async def _one(gateway: Gateway, listener: Listener, job: Job) -> AsyncIterator[bytes]:
    yield _job_event(gateway, job)
    while not (job.status.is_terminal or listener.is_over):
        wait_s = _QUEUE_LOOK_S if job.status == JobStatus.QUEUED else KEEP_ALIVE_S
        await listener.take(wait_s)
        try:
            latest = await run_in_threadpool(gateway.client.store.jobs.get, job.id)
        except JobNotFound:
            yield _gone_event(job.id)
            return
        if latest == job:
            yield KEEP_ALIVE
        else:
            job = latest
            yield _job_event(gateway, job)


def _job_event(gateway: Gateway, job: Job) -> bytes:
    return sse(job_view(job, gateway).model_dump(mode="json"), event="job")


def _gone_event(job_id: str) -> bytes:
    return sse({"id": job_id, "deleted": True}, event="deleted")
