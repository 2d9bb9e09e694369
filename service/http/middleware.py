"""The outermost layer: request ids, latency, and the last handler."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import NoRoom, error_body, shown
from service.http.error_responses import respond
from service.ids import request_id
from service.metrics import Metrics
from workers.errors import StorageFull
from workers.store.engine import is_storage_full

_log = logging.getLogger("lanewise.service")
_access = logging.getLogger("lanewise.access")
_GONE_STATUS = 499  # the caller hung up; nothing is sent


class Envelope:
    """Gives every request an id, measures it, and turns what nobody caught into a 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap `app`."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get("x-request-id")
        exchange = _Exchange(send, request_id(asked))
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        started = time.perf_counter()
        try:
            await self._app(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = exchange.status or _GONE_STATUS
        except Exception as error:  # noqa: BLE001 - the last handler: logged, and answered
            _log.exception("request %s failed", exchange.request_id)
            await exchange.send_failure(error, scope, receive)
        finally:
            elapsed_s = time.perf_counter() - started
            template = _template(scope)
            self._metrics.observe_http(scope["method"], template, exchange.status, elapsed_s)
            _access.info(
                "%s %s %d %.0f ms %s",
                scope["method"],
                template if template != "unmatched" else shown(scope["path"]),
                exchange.status,
                elapsed_s * 1000,
                exchange.request_id,
            )


class _Exchange:
    """The answer under way."""

    def __init__(self, send: Send, identifier: str) -> None:
        self._send = send
        self.request_id = identifier
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers.setdefault("x-content-type-options", "nosniff")
        await self._send(message)

    async def send_failure(self, cause: Exception, scope: Scope, receive: Receive) -> None:
        if self.status:  # the answer has begun: all that is left is to cut it off
            raise ConnectionAbortedError(f"request {self.request_id} failed in mid-answer")
        if is_storage_full(cause):
            response = respond(NoRoom(str(StorageFull())))
        else:
            text = f"The service failed. Its log has the cause under {self.request_id}."
            response = JSONResponse(error_body(text, "server_error"), status_code=500)
        await response(scope, receive, self.send)


def _template(scope: Scope) -> str:
    """The route's template, so that ids do not become label values."""
    route: Any = scope.get("route")
    return getattr(route, "path", "unmatched")
