"""Exceptions → JSON in OpenAI's error shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from service.errors import (
    ApiError,
    BadRequest,
    FieldError,
    KeyReused,
    NotFound,
    TooManyRequests,
    encodable,
    error_body,
    shown,
)
from workers import errors as store_errors

SUPPORTED_V1 = (
    "/v1/chat/completions, /v1/completions, /v1/models, /v1/videos and /v1/files; "
    "the native API is under /jobs and /batches"
)
_PLACES = {"body", "query", "path", "header", "cookie"}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def install(app: FastAPI) -> None:
    """Register the handlers on an app."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(FieldError, _on_field_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(store_errors.StoreError, _on_store_error)


def from_validation(errors: Sequence[Mapping[str, Any]]) -> BadRequest:
    """The first of pydantic's complaints, with `param` as a dotted path."""
    first = errors[0]
    param = dotted(first.get("loc", ())) or None
    message = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    if first.get("type") == "missing":
        return BadRequest(f"{param} is required.", param=param)
    if "input" in first and not isinstance(first["input"], dict | list):
        return BadRequest(f"{param} is {shown(first['input'])}: {message}.", param=param)
    return BadRequest(f"{param}: {message}." if param else f"{message}.", param=param)


def dotted(loc: Sequence[int | str]) -> str:
    """`("body", "messages", 0, "role")` as `messages.0.role`."""
    parts = [str(part) for part in loc if part != "[key]"]
    if parts and parts[0] in _PLACES:
        parts = parts[1:]
    return encodable(".".join(parts))[:200]


def from_pydantic(error: ValidationError) -> BadRequest:
    """The answer for a body that a schema refused."""
    return from_validation(error.errors(include_url=False, include_context=False))


def from_store(error: store_errors.StoreError) -> ApiError:
    """The answer for what the store would not do."""
    message = str(error)
    if isinstance(error, store_errors.QueueFull):
        return TooManyRequests(message)
    if isinstance(error, store_errors.IdempotencyMismatch):
        return KeyReused(message, param="Idempotency-Key")
    if isinstance(error, store_errors.JobNotRetryable):
        return BadRequest(message, code="job_not_retryable")
    if isinstance(error, store_errors.FileInUse):
        return BadRequest(message, code="file_in_use")
    if isinstance(error, store_errors.NotFound):
        return NotFound(message)
    if isinstance(error, store_errors.InvalidText):
        return BadRequest(message, param=error.field)
    raise error


def respond(error: ApiError) -> JSONResponse:
    """An error as a response."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _on_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return respond(error)


async def _on_field_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FieldError)
    return respond(BadRequest(error.message, param=error.param))


async def _on_store_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, store_errors.StoreError)
    return respond(from_store(error))


async def _on_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return respond(from_validation(error.errors()))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    code = _CODES.get(error.status_code)
    message = str(error.detail)
    if error.status_code == 404 and path.startswith("/v1"):
        code = "unknown_url"
        message = f"Unknown URL ({request.method} {path[:200]}). Supported: {SUPPORTED_V1}."
    elif error.status_code == 404:
        message = f"Nothing is at {path[:200]}."
    elif error.status_code == 405:
        message = f"{request.method} is not allowed at {path[:200]}."
    body = error_body(message, "invalid_request_error", None, code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
