"""Server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 10.0
DONE = b"data: [DONE]\n\n"
_JSON = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
MEDIA_TYPE = "text/event-stream; charset=utf-8"


def json_text(value: object) -> str:
    """Compact JSON in ASCII, as every event has it."""
    return _JSON.encode(value)


def sse(value: Mapping[str, Any], *, event: str | None = None) -> bytes:
    """One event with a JSON payload."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {_JSON.encode(value)}\n\n".encode()


class EventStream(StreamingResponse):
    """A stream of events; `on_close` runs however it ends, even before the first byte."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        *,
        on_close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take the events and what to do at the end."""
        super().__init__(
            content,
            media_type=MEDIA_TYPE,
            headers={**HEADERS, **(headers or {})},
        )
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, then close."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()
