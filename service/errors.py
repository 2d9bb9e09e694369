"""What the gateway may answer instead of a result. Free of FastAPI, so the command line may use it.

ServiceError
├── FieldError (ValueError)   a field out of its bounds, before anything speaks HTTP
└── ApiError                  has a status, a type, a code and perhaps a param
    ├── BadRequest            400
    ├── Unauthorized          401  carries WWW-Authenticate
    ├── Forbidden             403
    ├── NotFound              404
    ├── DeadlinePassed        408  the caller's own bound; tells clients not to retry
    ├── TooLarge              413
    ├── UnsupportedMedia      415
    ├── KeyReused             422  one idempotency key, two bodies
    ├── TooManyRequests       429
    ├── EngineFailed          500
    └── Unavailable           503  carries Retry-After
        └── NoRoom            503  a disk or the database is full
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

MAX_SHOWN_CHARS = 80


class ServiceError(Exception):
    """Root of the room's errors."""


class FieldError(ServiceError, ValueError):
    """A field is out of its bounds; the message names value, bound and way out."""

    def __init__(self, param: str, message: str) -> None:
        """Keep the name of the field beside the message."""
        super().__init__(message)
        self.param = param
        self.message = message


class ApiError(ServiceError):
    """An answer in OpenAI's error shape."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "invalid_request_error"
    default_code: ClassVar[str | None] = None
    default_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Fill in the code and headers of the class where none are given."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.headers = {**self.default_headers, **(headers or {})}

    def body(self) -> dict[str, Any]:
        """The JSON body; characters that UTF-8 cannot hold are escaped."""
        return error_body(self.message, self.type, self.param, self.code)


class BadRequest(ApiError):
    """The caller's request cannot be served as it stands."""

    status = 400


class Unauthorized(ApiError):
    """No key, or none that we know."""

    status = 401
    default_code = "invalid_api_key"
    default_headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    """The key is known and may not do this."""

    status = 403
    type = "permission_error"
    default_code = "insufficient_scope"


class NotFound(ApiError):
    """No such thing, or another tenant's."""

    status = 404
    default_code = "not_found"


class DeadlinePassed(ApiError):
    """The request's own deadline passed; the same request would meet it again."""

    status = 408
    default_code = "deadline_exceeded"
    default_headers: ClassVar[Mapping[str, str]] = {"x-should-retry": "false"}


class TooLarge(ApiError):
    """More bytes than we take."""

    status = 413
    default_code = "request_too_large"


class UnsupportedMedia(ApiError):
    """A content type or encoding that this route does not read."""

    status = 415
    default_code = "unsupported_media_type"


class KeyReused(ApiError):
    """The idempotency key was used with another body."""

    status = 422
    default_code = "idempotency_key_reused"


class TooManyRequests(ApiError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"
    default_headers: ClassVar[Mapping[str, str]] = {"Retry-After": "10"}


class EngineFailed(ApiError):
    """The worker gave up on a request that was well formed."""

    status = 500
    type = "server_error"


class Unavailable(ApiError):
    """Nobody can serve this now; later may be different."""

    status = 503
    type = "server_error"
    default_code = "engine_overloaded"
    default_headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}


class NoRoom(Unavailable):
    """A disk or the database is full, and somebody has to free some room."""

    default_code = "storage_full"


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object, always encodable."""
    safe_param = None if param is None else encodable(param)
    return {
        "error": {"message": encodable(message), "type": kind, "param": safe_param, "code": code}
    }


def encodable(text: str) -> str:
    """`text` with lone surrogates written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown(value: object) -> str:
    """A value for a message: escaped, and cut after 80 characters."""
    try:
        text = ascii(value)
    except ValueError:  # a whole number with more digits than Python prints
        return "a number that is too long"
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
