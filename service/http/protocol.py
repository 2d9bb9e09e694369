"""HTTP/1.1 with deadlines: a caller who trickles bytes does not hold a connection for ever."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Any, Literal, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from service.errors import error_body
from service.http.pushed_stream import BODY_WRITER

HEADERS_S = 30.0
BODY_S = 600.0
_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}
_Phase = Literal["headers", "body"] | None


class DeadlineProtocol(H11Protocol):
    """uvicorn's protocol, which closes a connection whose headers or body do not arrive in time.

    Deadlines are absolute: they run from the first byte of the headers or of the body, and no
    later byte moves them. Errors below HTTP are answered in our own shape.
    """

    headers_s = HEADERS_S
    body_s = BODY_S

    _deadline: asyncio.TimerHandle | None = None
    _phase: _Phase = None
    _phase_cycle: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._enter("headers")

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and see which part of a request is now awaited."""
        super().data_received(data)
        self._enter(self._awaited())

    def handle_events(self) -> None:
        """Read requests; each new one is offered a way to write the pieces of its body."""
        before = cast("RequestResponseCycle | None", self.cycle)
        super().handle_events()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and cycle is not before and _is_chunked(cycle):
            extensions = cast("dict[str, Any]", cycle.scope.setdefault("extensions", {}))
            extensions[BODY_WRITER] = partial(_write_chunk, cycle)

    def on_response_complete(self) -> None:
        """Between requests only the keep-alive timer runs."""
        super().on_response_complete()
        self._enter(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._enter(None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or too long, with JSON."""
        status: int = getattr(sys.exception(), "error_status_hint", 400)
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        body = json.dumps(error_body(msg, "invalid_request_error")).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        reason = _REASONS.get(status, b"Error")
        events: list[Any] = [
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(cast("bytes | None", self.conn.send(event)) or b"")
        self.transport.close()

    def _awaited(self) -> _Phase:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            return "headers"
        return "body" if cycle.more_body else None

    def _enter(self, phase: _Phase) -> None:
        if phase == self._phase and (phase is None or self.cycle is self._phase_cycle):
            return
        self._phase, self._phase_cycle = phase, self.cycle
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is not None:
            wait_s = self.headers_s if phase == "headers" else self.body_s
            self._deadline = self.loop.call_later(wait_s, self.transport.abort)


def _is_chunked(cycle: RequestResponseCycle) -> bool:
    """Whether h11 sends a body of unknown length to this caller in chunks."""
    return cycle.scope["http_version"] == "1.1" and cycle.scope["method"] != "HEAD"


def _write_chunk(cycle: RequestResponseCycle, piece: bytes) -> bool:
    """Write a piece of a streamed body as one chunk; false where `send` must take it.

    The same bytes as `send` would write, at a tenth of its cost; h11 hears of the body's end only.
    """
    if cycle.disconnected:
        return True
    if not piece or cycle.flow.write_paused or not cycle.response_started:
        return not piece
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True
