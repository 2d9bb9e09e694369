"""Reading POST /batches: a shot list with pictures as a form, or shots as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from service.auth import Principal
from service.batch.shots import ShotList, ShotProblem, parse_records, parse_shots
from service.context import Gateway
from service.errors import ApiError, BadRequest
from service.http.body import is_form, read_form, read_json, read_upload, text_fields, validate
from service.schemas.batches import BatchBody
from service.video.images import inspect, safe_name
from service.video.pictures import find_picture, image_rules, json_limit, store_picture
from workers.settings import Settings
from workers.store.files import StoredFile

MAX_PICTURES = 1000
MAX_LIST_BYTES = 8 * 2**20
_SHOWN_PROBLEMS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    """A batch as it came: `uploads` are pictures by the name they were sent under."""

    name: str
    is_dry_run: bool
    shots: ShotList
    uploads: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    def as_dry_run(self) -> RawBatch:
        """The same, to be checked only."""
        return replace(self, is_dry_run=True)


async def read_batch(request: Request, settings: Settings) -> RawBatch:
    """The batch of a request."""
    if not is_form(request):
        body = validate(BatchBody, await read_json(request, max_bytes=4 * json_limit(settings)))
        shots = parse_records(body.shots)
        return RawBatch(name=body.name, is_dry_run=body.dry_run, shots=shots)
    form = await read_form(request, max_files=MAX_PICTURES + 1)
    fields: dict[str, Any] = text_fields(form)
    text, list_name = fields.pop("shots", None), ""
    uploads: dict[str, bytes] = {}
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            continue
        if name == "shots":
            list_name = safe_name(value.filename)
            text = _decode(await read_upload(value, max_bytes=MAX_LIST_BYTES, param="shots"))
        elif name in {"images", "images[]", "image"}:
            limit = settings.max_upload_bytes
            data = await read_upload(value, max_bytes=limit, param="images")
            uploads[safe_name(value.filename)] = data
        else:
            raise BadRequest(f"{name[:80]} is no file part; use shots and images.", param=name[:80])
    if text is None:
        raise BadRequest("shots is required: a CSV or JSONL file.", param="shots")
    body = validate(BatchBody, {**fields, "shots": []})
    shots = parse_shots(text, name=list_name)
    return RawBatch(name=body.name, is_dry_run=body.dry_run, shots=shots, uploads=uploads)


def find_pictures(
    gateway: Gateway, principal: Principal, raw: RawBatch
) -> tuple[dict[str, StoredFile], list[ShotProblem]]:
    """The picture of each reference in the list, and the references without one."""
    found: dict[str, StoredFile] = {}
    wrong: dict[str, str] = {}
    problems: list[ShotProblem] = []
    for row in raw.shots.rows:
        if row.image not in found and row.image not in wrong:
            try:
                found[row.image] = _picture(gateway, principal, raw, row.image)
            except ApiError as error:
                wrong[row.image] = error.message
        if row.image in wrong:
            problems.append(ShotProblem(row.line, "image", wrong[row.image]))
    return found, sorted(set(problems))


def refuse(problems: list[ShotProblem]) -> BadRequest:
    """The answer to a list with mistakes: all of them, one per line of the message."""
    problems = sorted(set(problems))
    shown = [str(problem) for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    text = "\n".join([f"The shot list has {count}; nothing was queued.", *shown])
    return BadRequest(text, param="shots", code="invalid_shot_list")


def _picture(gateway: Gateway, principal: Principal, raw: RawBatch, image: str) -> StoredFile:
    name = safe_name(image)
    if name in raw.uploads:
        rules = image_rules(gateway.settings)
        picture = inspect(raw.uploads[name], name=name, rules=rules)
        return store_picture(gateway, principal, picture)
    if image.startswith(("file-", "data:")) or "://" in image[:32]:
        return find_picture(gateway, principal, image, param="image")
    raise BadRequest(f"the picture {name!r} was not sent along")


def _decode(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"The shot list is not UTF-8 (byte {error.start}); save it as UTF-8.", param="shots"
        ) from error
