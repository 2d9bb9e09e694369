"""Jobs: submit, list, look, cancel, retry, delete."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.auth import ReadKey, VideoKey
from service.context import GatewayDep
from service.http.body import validate
from service.http.openapi import errors, json_or_form_body
from service.schemas.jobs import DeletedJob, JobList, JobView, job_list, job_view
from service.video.body import SubmissionBody
from service.video.submission import read_submission, submit
from workers.protocol import JobKind, JobStatus
from workers.store.values import JobFilters

router = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(max_length=256, description="An id such as job_01J…")]
Text = Annotated[str | None, Query(max_length=256)]


@router.post(
    "/jobs",
    status_code=202,
    summary="Submit an image-to-video job",
    responses=errors(404, 413, 415, 422, 429, 503),
    openapi_extra=json_or_form_body(SubmissionBody, files=("image",)),
)
async def create_job(
    request: Request, response: Response, gateway: GatewayDep, key: VideoKey
) -> JobView:
    """Queue a job and answer at once.

    With `Idempotency-Key`, the same request sent again gives the same job and the header
    `Idempotency-Replayed`; the key with another body is 422.
    """
    raw = await read_submission(request, gateway.settings, file_part="image")
    body = validate(SubmissionBody, raw.fields)
    done = await submit(request, gateway, key, body, raw, param="image")
    response.headers.update({"Location": f"/jobs/{done.job.id}", **done.headers})
    return job_view(done.job, gateway)


@router.get("/jobs", summary="List jobs", responses=errors())
def list_jobs(  # noqa: PLR0913 - one parameter per filter
    gateway: GatewayDep,
    key: ReadKey,
    status: Annotated[list[JobStatus] | None, Query()] = None,
    kind: JobKind | None = None,
    project: Text = None,
    tag: Text = None,
    batch: Text = None,
    model: Text = None,
    after: Text = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> JobList:
    """One page of jobs in the order of their making; `status` may be given several times."""
    filters = JobFilters(
        status=status,
        kind=kind,
        project=project,
        tag=tag,
        batch_id=batch,
        model=model,
        key_id=key.sees,
    )
    page = gateway.client.store.jobs.list(filters, after=after, limit=limit, order=order)
    return job_list(page.jobs, gateway, has_more=page.has_more)


@router.get("/jobs/{job_id}", summary="Show a job", responses=errors(404))
def get_job(job_id: JobId, gateway: GatewayDep, key: ReadKey) -> JobView:
    """The job as it is now."""
    return job_view(gateway.client.store.jobs.get(job_id, key_id=key.sees), gateway)


@router.post("/jobs/{job_id}/cancel", summary="Cancel a job", responses=errors(404))
def cancel_job(job_id: JobId, gateway: GatewayDep, key: VideoKey) -> JobView:
    """A queued job is cancelled at once, a running one at its next step."""
    return job_view(gateway.client.cancel(job_id, key.sees), gateway)


@router.post("/jobs/{job_id}/retry", summary="Retry a job", responses=errors(404))
def retry_job(job_id: JobId, gateway: GatewayDep, key: VideoKey) -> JobView:
    """Queue a failed, cancelled or dead job again, with the same seed."""
    return job_view(gateway.client.retry(job_id, key.sees), gateway)


@router.delete("/jobs/{job_id}", summary="Delete a job", responses=errors(404))
async def delete_job(job_id: JobId, gateway: GatewayDep, key: VideoKey) -> DeletedJob:
    """Remove a job and its files; a running one is stopped first."""
    job = await run_in_threadpool(gateway.client.store.jobs.get, job_id, key_id=key.sees)
    await run_in_threadpool(gateway.client.delete, job_id, key.sees)
    gateway.events.deleted(job)
    return DeletedJob(id=job_id)
