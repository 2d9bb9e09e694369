"""What a job made, and the picture it was made from."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.auth import LinkKey
from service.context import GatewayDep
from service.errors import NotFound
from service.http.blobs import blob_response
from service.http.openapi import binary_answer, errors
from service.routes.jobs import JobId

router = APIRouter(tags=["jobs"])
_BYTES = errors(404, 416) | binary_answer("application/octet-stream")


@router.get(
    "/jobs/{job_id}/artifacts/{name}",
    summary="Download a file of a job",
    response_model=None,
    responses=_BYTES,
)
@router.head("/jobs/{job_id}/artifacts/{name}", include_in_schema=False, response_model=None)
def get_artifact(
    job_id: JobId, name: str, request: Request, gateway: GatewayDep, key: LinkKey
) -> Response:
    """One artifact; `Range`, `If-None-Match` and HEAD work, and so do signed links."""
    job = gateway.client.store.jobs.get(job_id, key_id=key.sees)
    for artifact in job.artifacts:
        if artifact.name == name:
            return blob_response(request, gateway.client.store.artifacts, artifact)
    raise NotFound(f"The job {job.id} has no file of that name.")


@router.get(
    "/jobs/{job_id}/image",
    summary="Download the picture of a job",
    response_model=None,
    responses=_BYTES,
)
@router.head("/jobs/{job_id}/image", include_in_schema=False, response_model=None)
def get_input_image(job_id: JobId, request: Request, gateway: GatewayDep, key: LinkKey) -> Response:
    """The picture that the job starts from, as it was uploaded."""
    job = gateway.client.store.jobs.get(job_id, key_id=key.sees)
    stored = gateway.client.store.files.get(job.request.image)
    return blob_response(request, gateway.client.store.artifacts, stored)
