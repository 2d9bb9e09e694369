"""Pieces of the OpenAPI document that routes with hand-read bodies declare."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from service.http.json_values import as_list, as_object

_TEXTS = {
    400: "The request cannot be served as it stands.",
    401: "No valid API key.",
    403: "The key may not do this.",
    404: "No such thing.",
    408: "The request's own deadline passed.",
    413: "Too many bytes.",
    415: "A content type that is not read here.",
    416: "No such bytes.",
    422: "The idempotency key was used with another body.",
    429: "The queue is full.",
    500: "The service failed.",
    503: "Nobody can serve this now.",
}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """The shape of every error."""

    error: ErrorDetail = Field(description="What went wrong.")


def errors(*more: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route: 400, 401 and 403 always, and `more`."""
    statuses = sorted({400, 401, 403, *more})
    return {s: {"model": ErrorAnswer, "description": _TEXTS[s]} for s in statuses}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra=` of a route that reads JSON by itself."""
    return {"requestBody": {"required": True, "content": {"application/json": _content(model)}}}


def json_or_form_body(model: type[BaseModel], *, files: tuple[str, ...]) -> dict[str, Any]:
    """`openapi_extra=` of a route that reads JSON or a form in which `files` are file parts."""
    form = inlined_schema(model)
    binary = {"type": "string", "format": "binary"}
    form = {**form, "properties": {**form["properties"], **dict.fromkeys(files, binary)}}
    content = {"application/json": _content(model), "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def form_body(model: type[BaseModel], *, files: tuple[str, ...]) -> dict[str, Any]:
    """`openapi_extra=` of a route that reads a form only."""
    body = json_or_form_body(model, files=files)["requestBody"]
    del body["content"]["application/json"]
    return {"requestBody": body}


def binary_answer(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with bytes."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in media_types}
    return {200: {"description": "The bytes.", "content": content}}


def inlined_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model without references (our bodies are not recursive)."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return _inline(schema, definitions)


def drop_undeclared_422(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the 422 that FastAPI adds by itself: here, every validation error is a 400."""
    for methods in document["paths"].values():
        for operation in methods.values():
            declared = operation["responses"].get("422", {})
            if "HTTPValidationError" in str(declared.get("content", "")):
                del operation["responses"]["422"]
    schemas = document.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return document


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": inlined_schema(model)}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    if (items := as_list(node)) is not None:
        return [_inline(item, definitions) for item in items]
    members = as_object(node)
    if members is None:
        return node
    if "$ref" in members:
        return _inline(definitions[members["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in members.items()}
