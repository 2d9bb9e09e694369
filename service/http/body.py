"""Reading request bodies: strict JSON and bounded forms."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from service.errors import BadRequest, TooLarge, UnsupportedMedia
from service.http.error_responses import from_pydantic
from service.http.json_values import as_object

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_JSON_BYTES = 8 * 2**20
_MAX_FIELDS = 100


async def read_json(request: Request, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object of a request.

    Refused: other encodings than UTF-8, NaN and infinities, numbers Python will not parse, bodies
    over `max_bytes`, and anything that is not an object.
    """
    content_type = request.headers.get("content-type", "application/json")
    if media_type(content_type) != "application/json":
        raise UnsupportedMedia(
            f"Content-Type is {content_type[:80]!r}; send application/json.", param="Content-Type"
        )
    return parse_json(await read_bytes(request, max_bytes))


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """The body, read up to `max_bytes`."""
    check_encoding(request)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > max_bytes:
        raise TooLarge(f"The body has {declared} bytes; at most {max_bytes} are read here.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise TooLarge(f"The body is larger than {max_bytes} bytes.")
    return bytes(body)


def parse_json(body: bytes) -> dict[str, Any]:
    """Strict JSON: an object in UTF-8 with finite numbers."""
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite
        )
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8 (byte {error.start}).") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {str(error)[:120]}.") from error
    found = as_object(value)
    if found is None:
        raise BadRequest(f"The body must be a JSON object, not {type(value).__name__}.")
    return found


async def read_form(request: Request, *, max_files: int) -> FormData:
    """A multipart form; the files are spooled to disk."""
    check_encoding(request)
    return await request.form(max_files=max_files, max_fields=_MAX_FIELDS)


def text_fields(form: FormData, *, repeated: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The text fields of a form; a field given twice is an error unless in `repeated`."""
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            continue
        plain = name.removesuffix("[]")
        if plain in repeated:
            fields.setdefault(plain, []).append(value)
        elif plain in fields:
            raise BadRequest(f"{plain[:80]} is given twice.", param=plain[:80])
        else:
            fields[plain] = value
    return fields


async def read_upload(upload: UploadFile, *, max_bytes: int, param: str) -> bytes:
    """The bytes of an uploaded file."""
    if upload.size is not None and upload.size > max_bytes:
        raise TooLarge(
            f"{param} has {upload.size} bytes; at most {max_bytes} are taken.", param=param
        )
    return await upload.read()


def check_encoding(request: Request) -> None:
    """Refuse compressed bodies: their real size is not known before they are unpacked."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMedia(
            f"Content-Encoding {encoding[:40]!r} is not read; send the body as it is.",
            param="Content-Encoding",
        )


def is_form(request: Request) -> bool:
    """Whether the body is a multipart form."""
    return media_type(request.headers.get("content-type", "")) == "multipart/form-data"


def media_type(content_type: str) -> str:
    """The bare type of a Content-Type header."""
    return content_type.partition(";")[0].strip().lower()


def validate(model: type[ModelT], values: dict[str, Any]) -> ModelT:
    """`values` as a schema; a refusal is a 400 that names the field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise from_pydantic(error) from error


def _refuse_constant(name: str) -> float:
    raise BadRequest(f"The body holds {name}; numbers must be finite.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRequest(f"The body holds the number {text[:40]}; numbers must be finite.")
    return value
