"""OpenAI's files: uploads that jobs refer to by id."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from service.auth import Principal, ReadKey, VideoKey
from service.context import Gateway, GatewayDep
from service.errors import BadRequest, UnsupportedMedia
from service.http.blobs import blob_response
from service.http.body import is_form, read_form, read_upload, text_fields, validate
from service.http.openapi import binary_answer, errors, form_body
from service.schemas.files import DeletedFile, FileBody, FileList, FileView, Purpose, file_view
from service.video.images import inspect, safe_name
from service.video.pictures import image_rules, store_picture
from workers.store.files import StoredFile

router = APIRouter(tags=["files"])
FileId = Annotated[str, Path(max_length=256, description="An id such as file-01J…")]


@router.post(
    "/v1/files",
    summary="Upload a file",
    responses=errors(413, 415),
    openapi_extra=form_body(FileBody, files=("file",)),
)
async def create_file(request: Request, gateway: GatewayDep, key: VideoKey) -> FileView:
    """Keep a file; with the purpose `vision` it must be a PNG, JPEG or WebP picture."""
    if not is_form(request):
        raise UnsupportedMedia("Send multipart/form-data with the parts file and purpose.")
    form = await read_form(request, max_files=1)
    fields = text_fields(form)
    if any(name.startswith("expires_after") for name in fields):
        raise BadRequest(
            "expires_after is not supported; delete the file when it is not needed.",
            param="expires_after",
            code="unsupported_parameter",
        )
    body = validate(FileBody, fields)
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise BadRequest("file is required, as a file part.", param="file")
    limit = gateway.settings.max_upload_bytes
    data = await read_upload(upload, max_bytes=limit, param="file")
    name = safe_name(upload.filename)
    return file_view(await run_in_threadpool(_keep, gateway, key, data, name, body.purpose))


@router.get("/v1/files", summary="List files", responses=errors())
def list_files(
    gateway: GatewayDep,
    key: ReadKey,
    purpose: Purpose | None = None,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
) -> FileList:
    """One page of files in the order of their making."""
    page = gateway.client.store.files.list(
        key_id=key.sees, purpose=purpose, after=after, limit=limit, order=order
    )
    data = [file_view(stored) for stored in page.files]
    return FileList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=page.has_more,
    )


@router.get("/v1/files/{file_id}", summary="Show a file", responses=errors(404))
def get_file(file_id: FileId, gateway: GatewayDep, key: ReadKey) -> FileView:
    """Facts about a file."""
    return file_view(gateway.client.store.files.get(file_id, key_id=key.sees))


@router.get(
    "/v1/files/{file_id}/content",
    summary="Download a file",
    response_model=None,
    responses=errors(404, 416) | binary_answer("application/octet-stream"),
)
def get_file_content(
    file_id: FileId, request: Request, gateway: GatewayDep, key: ReadKey
) -> Response:
    """The bytes as they were uploaded."""
    stored = gateway.client.store.files.get(file_id, key_id=key.sees)
    return blob_response(request, gateway.client.store.artifacts, stored)


@router.delete("/v1/files/{file_id}", summary="Delete a file", responses=errors(404))
def delete_file(file_id: FileId, gateway: GatewayDep, key: VideoKey) -> DeletedFile:
    """Remove a file. Jobs that started from it cannot run again; one that has not ended keeps it.

    The latter is 400 `file_in_use`.
    """
    gateway.client.store.files.delete(file_id, key_id=key.sees)
    return DeletedFile(id=file_id)


def _keep(
    gateway: Gateway, principal: Principal, data: bytes, name: str, purpose: Purpose
) -> StoredFile:
    if purpose == "vision":
        rules = image_rules(gateway.settings)
        picture = inspect(data, name=name, rules=rules, param="file")
        return store_picture(gateway, principal, picture)
    if not data:
        raise BadRequest("file is empty (0 bytes).", param="file")
    return gateway.client.store.files.put(
        data,
        name=name,
        media_type="application/octet-stream",
        key_id=principal.key_id,
        purpose=purpose,
    )
