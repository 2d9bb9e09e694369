"""The events of one chat request, read by a task of its own.

The task outlives any cancellation of the request around it just long enough to tell the worker
that nobody reads any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing

from fastapi import Request

from service.context import Gateway
from service.errors import ApiError, EngineFailed, ServiceError, Unavailable
from service.http.error_responses import from_store
from workers.client import NoWorker
from workers.errors import StoreError
from workers.protocol import ChatEvent, ChatRequest

_log = logging.getLogger("lanewise.service")
ANSWER_DEADLINE_S = 540.0
_LOOK_S = 0.5


class ClientGone(ServiceError):
    """The caller hung up; there is nobody to answer."""


class ChatStream:
    """Events of one request in order.

    Invariants: `close` may be called at any time, more than once, without an await; after it the
    worker is told to stop.
    """

    def __init__(self, gateway: Gateway, request: ChatRequest) -> None:
        """Start reading, on the running loop."""
        self._gateway = gateway
        self._request = request
        self._queue: asyncio.Queue[ChatEvent | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._pump(), name=f"chat {request.id}")

    async def next(self, timeout_s: float) -> ChatEvent:
        """The next event.

        Raises: TimeoutError when none comes in time; ApiError when the events end early.
        """
        async with asyncio.timeout(timeout_s):
            event = await self._queue.get()
        if event is None:
            await asyncio.wait([self._task])
            error = self._task.exception()
            raise _early_end(error) from error
        return event

    async def next_while_connected(self, http: Request, deadline: float) -> ChatEvent:
        """The next event, looking twice a second whether the caller is still there.

        Raises: ClientGone, TimeoutError at `deadline` (of `time.monotonic`), and as `next`.
        """
        while True:
            if self._queue.empty() and await http.is_disconnected():
                self.close()
                raise ClientGone
            left_s = deadline - time.monotonic()
            try:
                return await self.next(min(_LOOK_S, max(left_s, 0.0)))
            except TimeoutError:
                if left_s <= _LOOK_S:
                    raise

    def close(self) -> None:
        """Stop reading; the client's iterator then cancels the request at the worker."""
        self._task.cancel()

    async def _pump(self) -> None:
        events = self._gateway.client.open_chat(self._request)
        try:
            async with aclosing(events):
                async for event in events:
                    self._queue.put_nowait(event)
        finally:
            self._queue.put_nowait(None)


def _early_end(error: BaseException | None) -> ApiError:
    if isinstance(error, NoWorker):
        return Unavailable(
            str(error), param="model", code="no_worker_for_model", headers={"Retry-After": "5"}
        )
    if isinstance(error, StoreError):
        return from_store(error)
    if error is not None:
        _log.error("a chat answer broke off", exc_info=error)
    return EngineFailed("The worker's answer ended early.", code="answer_incomplete")


def overdue() -> Unavailable:
    """The answer to a caller who has waited too long for the whole of a chat answer."""
    return Unavailable(f"No answer within {ANSWER_DEADLINE_S:g} s; the model is overloaded.")
