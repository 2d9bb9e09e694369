"""OpenAI's videos: another view of the same jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.auth import Principal, ReadKey, VideoKey
from service.catalog import video_limits
from service.context import Gateway, GatewayDep
from service.errors import FieldError, NotFound
from service.http.blobs import blob_response
from service.http.body import read_json, validate
from service.http.json_values import as_object
from service.http.openapi import binary_answer, errors, json_body, json_or_form_body
from service.routes.jobs import JobId
from service.schemas.videos import (
    DeletedVideo,
    RemixBody,
    VideoBody,
    VideoList,
    VideoView,
    video_view,
)
from service.video.body import REMIX_TAG, SubmissionBody
from service.video.idempotency import fingerprint, idempotency_key
from service.video.request import check_texts
from service.video.submission import read_submission, submit
from workers.protocol import Artifact, Job, JobStatus
from workers.store.values import Created, Idempotency, JobFilters

router = APIRouter(tags=["videos"])
_PICTURE = "input_reference"
_POLL = {"openai-poll-after-ms": "500"}
Variant = Literal["video", "thumbnail", "spritesheet"]


@router.post(
    "/v1/videos",
    summary="Create a video",
    responses=errors(404, 413, 415, 422, 429, 503),
    openapi_extra=json_or_form_body(VideoBody, files=(_PICTURE,)),
)
async def create_video(
    request: Request, response: Response, gateway: GatewayDep, key: VideoKey
) -> VideoView:
    """Queue a video that starts from `input_reference`; unknown fields are ignored."""
    raw = await read_submission(request, gateway.settings, file_part=_PICTURE)
    asked = validate(VideoBody, _flat_reference(raw.fields))
    body = validate(SubmissionBody, await run_in_threadpool(_native, gateway, asked))
    done = await submit(request, gateway, key, body, raw, param=_PICTURE)
    response.headers.update({**_POLL, **done.headers})
    return video_view(done.job)


@router.get("/v1/videos", summary="List videos", responses=errors())
def list_videos(
    gateway: GatewayDep,
    key: ReadKey,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> VideoList:
    """One page of videos in the order of their making."""
    filters = JobFilters(key_id=key.sees)
    page = gateway.client.store.jobs.list(filters, after=after, limit=limit, order=order)
    data = [video_view(job) for job in page.jobs]
    return VideoList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=page.has_more,
    )


@router.get("/v1/videos/{job_id}", summary="Show a video", responses=errors(404))
def get_video(job_id: JobId, response: Response, gateway: GatewayDep, key: ReadKey) -> VideoView:
    """The video as it is now."""
    response.headers.update(_POLL)
    return video_view(gateway.client.store.jobs.get(job_id, key_id=key.sees))


@router.get(
    "/v1/videos/{job_id}/content",
    summary="Download a video",
    response_model=None,
    responses=errors(404, 416) | binary_answer("video/mp4", "image/webp", "image/png"),
)
def get_video_content(
    job_id: JobId,
    request: Request,
    gateway: GatewayDep,
    key: ReadKey,
    variant: Variant = "video",
) -> Response:
    """The clip, a thumbnail or a sheet of frames. Before completion: 404 `video_not_ready`."""
    job = gateway.client.store.jobs.get(job_id, key_id=key.sees)
    if not job.status.is_terminal:
        text = f"The video {job.id} is {job.status.value}; ask again when it is completed."
        raise NotFound(text, code="video_not_ready")
    if job.status != JobStatus.SUCCEEDED:
        raise NotFound(f"The video {job.id} has {job.status.value}; there is no content.")
    for artifact in job.artifacts:
        if _VARIANTS[variant](artifact):
            return blob_response(request, gateway.client.store.artifacts, artifact)
    raise NotFound(f"The video {job.id} has no {variant}.", param="variant")


@router.delete("/v1/videos/{job_id}", summary="Delete a video", responses=errors(404))
async def delete_video(job_id: JobId, gateway: GatewayDep, key: VideoKey) -> DeletedVideo:
    """Remove a video and its files; a running one is stopped first."""
    job = await run_in_threadpool(gateway.client.store.jobs.get, job_id, key_id=key.sees)
    await run_in_threadpool(gateway.client.delete, job_id, key.sees)
    gateway.events.deleted(job)
    return DeletedVideo(id=job_id)


@router.post(
    "/v1/videos/{job_id}/remix",
    summary="Make a video again with other words",
    responses=errors(404, 413, 415, 422, 429, 503),
    openapi_extra=json_body(RemixBody),
)
async def remix_video(
    job_id: JobId, request: Request, response: Response, gateway: GatewayDep, key: VideoKey
) -> VideoView:
    """The same picture, size, length and seed with a new prompt."""
    body = validate(RemixBody, await read_json(request))
    token = idempotency_key(request)
    created = await run_in_threadpool(_remix, gateway, key, job_id, body.prompt, token)
    response.headers.update(_POLL)
    if created.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return video_view(created.job)


def _remix(
    gateway: Gateway, key: Principal, job_id: str, prompt: str, token: str | None
) -> Created:
    source: Job = gateway.client.store.jobs.get(job_id, key_id=key.sees)
    _, limits = video_limits(gateway, source.request.model)
    problems = check_texts(prompt, source.request.negative_prompt, limits)
    if problems:
        raise problems[0]
    tags = [tag for tag in source.labels.tags if not tag.startswith(REMIX_TAG)]
    labels = source.labels.model_copy(update={"tags": (*tags, REMIX_TAG + source.id)})
    asked = {"remix": source.id, "prompt": prompt}
    idempotency = None if token is None else Idempotency(token, fingerprint(asked))
    video = source.request.model_copy(update={"prompt": prompt})
    return gateway.client.submit_video(video, labels, key_id=key.key_id, idempotency=idempotency)


def _flat_reference(fields: dict[str, object]) -> dict[str, Any]:
    """`input_reference` as one string, whether it came plain, as an object or as form fields."""
    flat = dict(fields)
    for kind in ("file_id", "image_url"):
        nested = flat.pop(f"{_PICTURE}[{kind}]", None)
        flat[_PICTURE] = nested or flat.get(_PICTURE)
    value = as_object(flat.get(_PICTURE))
    if value is not None:
        flat[_PICTURE] = value.get("file_id") or value.get("image_url")
    if flat.get(_PICTURE) is not None and not isinstance(flat[_PICTURE], str):
        raise FieldError(_PICTURE, f"{_PICTURE} must be a file part, a file id or a data: URL.")
    return flat


def _native(gateway: Gateway, asked: VideoBody) -> dict[str, Any]:
    """The fields of a native submission."""
    seconds: object = asked.seconds
    if seconds is None and asked.num_frames is not None:
        fps = asked.fps or video_limits(gateway, asked.model or None)[1].default_fps
        seconds = asked.num_frames / fps
    fields = {
        "prompt": asked.prompt,
        "model": asked.model,
        "image": asked.input_reference,
        "seconds": seconds,
        "size": asked.size,
        "width": asked.width,
        "height": asked.height,
        "fps": asked.fps,
        "steps": asked.num_inference_steps,
        "guidance_scale": asked.guidance_scale,
        "seed": asked.seed,
        "negative_prompt": asked.negative_prompt,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _is_thumbnail(artifact: Artifact) -> bool:
    is_image = artifact.media_type.startswith("image/")
    return is_image and any(word in artifact.name for word in ("thumb", "poster"))


def _is_sheet(artifact: Artifact) -> bool:
    is_image = artifact.media_type.startswith("image/")
    return is_image and any(word in artifact.name for word in ("sheet", "sprite"))


def _is_clip(artifact: Artifact) -> bool:
    return artifact.media_type.startswith("video/")


_VARIANTS: dict[Variant, Callable[[Artifact], bool]] = {
    "video": _is_clip,
    "thumbnail": _is_thumbnail,
    "spritesheet": _is_sheet,
}
