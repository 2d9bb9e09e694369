"""Taking in one clip to make: find the picture, settle every choice, queue it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from service.auth import Principal
from service.catalog import known_workers, video_limits
from service.context import Gateway
from service.errors import BadRequest, FieldError
from service.http.body import is_form, read_form, read_json, read_upload, text_fields
from service.ids import draw_seed
from service.plan_header import plan_headers
from service.video.body import SubmissionBody
from service.video.idempotency import earlier_job, fingerprint, idempotency_key, is_resent
from service.video.images import inspect, safe_name
from service.video.pictures import find_picture, image_rules, input_image, json_limit, store_picture
from service.video.request import resolve
from service.video.webhook_url import check_webhook_url
from workers.protocol import Job, VideoJobRequest, VideoLimits
from workers.settings import Settings
from workers.store.files import StoredFile
from workers.store.values import Idempotency


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSubmission:
    """A body as it came: plain fields, and the picture where it was a file part."""

    fields: dict[str, object]
    upload: bytes | None = None
    upload_name: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job, and the headers that say whether it is an earlier one."""

    job: Job
    headers: Mapping[str, str]


async def read_submission(request: Request, settings: Settings, *, file_part: str) -> RawSubmission:
    """A submission from JSON or a form, with `file_part` as the name of the picture's part."""
    if not is_form(request):
        return RawSubmission(fields=await read_json(request, max_bytes=json_limit(settings)))
    form = await read_form(request, max_files=1)
    fields = text_fields(form, repeated=frozenset({"tags"}))
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            continue
        if name != file_part:
            text = f"{name[:80]} is no file part; the picture goes into {file_part}."
            raise BadRequest(text, param=name[:80])
        limit = settings.max_upload_bytes
        upload = await read_upload(value, max_bytes=limit, param=file_part)
        return RawSubmission(fields=fields, upload=upload, upload_name=safe_name(value.filename))
    return RawSubmission(fields=fields)


async def submit(
    request: Request,
    gateway: Gateway,
    principal: Principal,
    body: SubmissionBody,
    raw: RawSubmission,
    *,
    param: str,
) -> Submitted:
    """Queue the clip, or find the job that an earlier send of the same request made.

    `param` is the name of the picture's field in this route.
    """
    maker = _Maker(gateway, principal, body, raw, param)
    key, resent = idempotency_key(request), is_resent(request)
    return await run_in_threadpool(maker.submit, key, resent)


class _Maker:
    """One submission at work; runs in a thread."""

    def __init__(
        self,
        gateway: Gateway,
        principal: Principal,
        body: SubmissionBody,
        raw: RawSubmission,
        param: str,
    ) -> None:
        self._gateway = gateway
        self._principal = principal
        self._body = body
        self._raw = raw
        self._param = param

    def submit(self, key: str | None, resent: bool) -> Submitted:
        """The job, made now or before."""
        may_be_private = self._gateway.settings.webhook_private_hosts
        if self._body.webhook_url is not None:
            check_webhook_url(self._body.webhook_url, may_be_private=may_be_private)
        model, limits = video_limits(self._gateway, self._body.model)
        stored = self._picture()
        video = self._resolve(stored, model, limits)
        labels, key_id = self._body.labels(), self._principal.key_id
        if key is None and resent:
            store, has_seed = self._gateway.client.store, self._body.seed is not None
            earlier = earlier_job(store, video, labels, key_id=key_id, has_seed=has_seed)
            if earlier is not None:
                return Submitted(earlier, {"x-duplicate-of": earlier.id} | self._plan(model))
        idempotency = None if key is None else Idempotency(key, self._fingerprint(stored, model))
        created = self._gateway.client.submit_video(
            video, labels, key_id=key_id, idempotency=idempotency
        )
        replayed = {"Idempotency-Replayed": "true"} if created.replayed else {}
        return Submitted(created.job, replayed | self._plan(model))

    def _plan(self, model: str) -> dict[str, str]:
        """The plan that the model's worker runs now."""
        workers = known_workers(self._gateway, "video")
        return plan_headers(next((w for w in workers if w.model == model), None))

    def _resolve(self, stored: StoredFile, model: str, limits: VideoLimits) -> VideoJobRequest:
        choices, image = self._body.choices(), input_image(stored)
        try:
            return resolve(choices, image, model=model, limits=limits, draw_seed=draw_seed)
        except FieldError as error:
            if self._body.size is not None and error.param in {"width", "height"}:
                raise FieldError("size", error.message) from error
            raise

    def _picture(self) -> StoredFile:
        if self._raw.upload is not None:
            rules, name = image_rules(self._gateway.settings), self._raw.upload_name
            picture = inspect(self._raw.upload, name=name, rules=rules, param=self._param)
            return store_picture(self._gateway, self._principal, picture)
        if not self._body.image:
            text = f"{self._param} is required: a file part, a file id or a data: URL."
            raise BadRequest(text, param=self._param)
        return find_picture(self._gateway, self._principal, self._body.image, param=self._param)

    def _fingerprint(self, stored: StoredFile, model: str) -> str:
        """What makes two sends the same request: the fields as asked for, and the picture."""
        asked = self._body.model_dump(mode="json", exclude={"image", "model", "size"})
        return fingerprint(asked | {"image": stored.sha256, "model": model})
