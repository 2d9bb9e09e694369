"""Server-sent events that are pushed by plain calls, so that an event wakes no task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.stream import HEADERS, KEEP_ALIVE, MEDIA_TYPE
from service.waker import Waker

# In `scope["extensions"]`: writes a piece of the body and says whether it could.
BODY_WRITER = "lanewise.body_writer"
BodyWriter = Callable[[bytes], bool]


class PushedStream(Response):
    """A stream whose events come by `write` and, last, by `end`; call them on the event loop.

    Where the server offers a `BODY_WRITER`, a piece goes straight to the socket, past layers that
    only the head concerns; else, and while a slow caller's socket is full, by ASGI's `send`.
    Invariants: pieces leave in the order of the calls; `on_close` runs however the stream ends,
    even before its first byte.
    """

    def __init__(
        self,
        *,
        on_close: Callable[[], None],
        keep_alive_s: float,
        headers: Mapping[str, str],
    ) -> None:
        """Nothing is sent before the response is called; what is written meanwhile waits."""
        self.status_code = 200
        self.media_type = MEDIA_TYPE
        self.background = None
        self.init_headers({**HEADERS, **headers})
        self._on_close = on_close
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._written_s = self._loop.time()
        self._waiting: list[bytes] = []
        self._waker = Waker()
        self._direct: BodyWriter | None = None
        self._is_over = False
        self._is_aborted = False

    def write(self, piece: bytes) -> None:
        """Send a piece as soon as the socket takes it."""
        if self._is_over:
            return
        self._written_s = self._loop.time()
        if self._direct is None or self._waiting or not self._direct(piece):
            self._waiting.append(piece)
            self._waker.wake()

    def end(self, piece: bytes) -> None:
        """Send the last piece; what is written afterwards is dropped."""
        if not self._is_over:
            self._is_over = True
            self._waiting.append(piece)
            self._waker.wake()

    def abort(self) -> None:
        """Cut the stream off: its end cannot be told."""
        self._is_aborted = True
        self._waker.wake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until `end`, or until the caller has gone."""
        gone = self._loop.create_task(_disconnected(receive))
        gone.add_done_callback(lambda _: self._waker.wake())
        self._timer = self._loop.call_later(self._keep_alive_s, self._look_for_silence)
        try:
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            await self._send_all(send, gone, scope.get("extensions", {}).get(BODY_WRITER))
        finally:
            self._direct = None
            self._timer.cancel()
            gone.cancel()
            self._on_close()

    async def _send_all(
        self, send: Send, gone: asyncio.Task[None], direct: BodyWriter | None
    ) -> None:
        is_last = False
        while not (is_last or gone.done()):
            if self._is_aborted:
                raise ConnectionAbortedError("a stream broke off")
            if not self._waiting:
                # Only what was not refused goes past `send`, so nothing overtakes it.
                self._direct = direct
                await self._waker.sleep()
                continue
            self._direct = None
            body, is_last = b"".join(self._waiting), self._is_over
            self._waiting.clear()
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})

    def _look_for_silence(self) -> None:
        """One timer for the whole stream, since a timer for each token costs as much as it."""
        if self._written_s + self._keep_alive_s <= self._loop.time():
            self.write(KEEP_ALIVE)
        left_s = self._written_s + self._keep_alive_s - self._loop.time()
        self._timer = self._loop.call_later(left_s, self._look_for_silence)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
