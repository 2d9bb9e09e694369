"""The render queue: shot lists in, clips and a contact sheet out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.auth import LinkKey, ReadKey, VideoKey
from service.batch.batches import retry_failed, submit_batch
from service.batch.body import read_batch
from service.batch.contact_sheet import Cell, draw_contact_sheet
from service.context import GatewayDep
from service.http.openapi import binary_answer, errors, json_or_form_body
from service.schemas.batches import BatchBody, BatchList, BatchView, batch_view, summary_view

router = APIRouter(tags=["batches"])
BatchId = Annotated[str, Path(max_length=256, description="An id such as batch_01J…")]


@router.post(
    "/batches",
    status_code=202,
    summary="Submit a shot list",
    responses={200: {"model": BatchView, "description": "A dry run found no problem."}}
    | errors(413, 415, 429, 503),
    openapi_extra=json_or_form_body(BatchBody, files=("shots", "images")),
)
async def create_batch(
    request: Request,
    response: Response,
    gateway: GatewayDep,
    key: VideoKey,
    dry_run: Annotated[bool, Query(description="As the field `dry_run`.")] = False,
) -> BatchView:
    """Queue one job per shot and seed, or nothing when any line has a problem.

    A list sent again under the same name runs only what changed or failed. `dry_run` checks and
    queues nothing.
    """
    raw = await read_batch(request, gateway.settings)
    if dry_run:
        raw = raw.as_dry_run()
    view = await run_in_threadpool(submit_batch, gateway, key, raw)
    if view.id is None:
        response.status_code = 200
    else:
        response.headers["Location"] = f"/batches/{view.id}"
    return view


@router.get("/batches", summary="List batches", responses=errors())
def list_batches(
    gateway: GatewayDep,
    key: ReadKey,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchList:
    """Batches, newest first."""
    store = gateway.client.store.batches
    found = store.list(key_id=key.sees, after=after, limit=limit + 1)
    data = [summary_view(summary) for summary in found[:limit]]
    return BatchList(data=data, has_more=len(found) > limit)


@router.get("/batches/{batch_id}", summary="Show a batch", responses=errors(404))
def get_batch(batch_id: BatchId, gateway: GatewayDep, key: ReadKey) -> BatchView:
    """The batch with every shot and its job."""
    return batch_view(gateway.client.store.batches.get(batch_id, key_id=key.sees), gateway)


@router.post(
    "/batches/{batch_id}/retry", summary="Retry what failed in a batch", responses=errors(404)
)
def retry_batch(batch_id: BatchId, gateway: GatewayDep, key: VideoKey) -> BatchView:
    """Queue the failed and dead jobs again; the others stay as they are."""
    return batch_view(retry_failed(gateway, key, batch_id), gateway)


@router.get(
    "/batches/{batch_id}/contact_sheet.png",
    summary="All clips of a batch on one picture",
    response_model=None,
    responses=errors(404) | binary_answer("image/png"),
)
def get_contact_sheet(batch_id: BatchId, gateway: GatewayDep, key: LinkKey) -> Response:
    """Thumbnails with shot names and seeds; what is not done shows its state."""
    client = gateway.client
    batch = client.store.batches.get(batch_id, key_id=key.sees)
    cells = [
        Cell(f"{s.job.labels.shot}  seed {s.job.request.seed}" if s.job else "", s.job)
        for s in batch.shots
    ]
    sheet = draw_contact_sheet(cells, client.store.artifacts)
    return Response(sheet, media_type="image/png", headers={"cache-control": "no-cache"})
