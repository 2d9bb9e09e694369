"""The events of one HTTP request, read by tasks of their own, one for each engine request.

The tasks outlive any cancellation of the request around them just long enough to tell the worker
that nobody reads any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

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

Placed = tuple[int, ChatEvent]


class ClientGone(ServiceError):
    """The caller hung up; there is nobody to answer."""


class EventMerge:
    """Events of several engine requests, each with the position of its request.

    Invariants: the events of one request come in order; `close` may be called at any time, more
    than once, without an await; after it the worker is told to stop all of them.
    """

    def __init__(self, gateway: Gateway, requests: Sequence[ChatRequest]) -> None:
        """Start reading, on the running loop."""
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, ChatEvent | None]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._look_at = 0.0
        self._heard_s = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._tasks = [
            asyncio.create_task(self._pump(position, request), name=f"chat {request.id}")
            for position, request in enumerate(requests)
        ]

    async def next(self, timeout_s: float) -> Placed:
        """The next event.

        Raises: TimeoutError when none comes in time; ApiError when the events end early.
        """
        if not self._waiting:
            async with asyncio.timeout(timeout_s):
                await self._wait()
        position, event = self._waiting.popleft()
        if event is None:
            await self._raise_end(position)
        assert event is not None, "an early end is raised"
        return position, event

    async def next_batch(self, silence_s: float) -> list[Placed]:
        """All events that are there; empty when nothing was heard for about `silence_s`.

        One timer for all calls, since a timer for each token costs as much as the token.
        Raises: ApiError when the events end early.
        """
        self._heard_s = self._loop.time()
        if self._silence is None:
            self._look_for_silence(silence_s)
        if not self._waiting:
            await self._wait()
        batch: list[Placed] = []
        while self._waiting:
            position, event = self._waiting[0]
            if event is None:
                if not batch:
                    await self._raise_end(position)
                break
            self._waiting.popleft()
            batch.append((position, event))
        return batch

    def _look_for_silence(self, silence_s: float) -> None:
        left_s = self._heard_s + silence_s - self._loop.time()
        if left_s <= 0:
            self._heard_s = self._loop.time()
            self._wake()
            left_s = silence_s
        self._silence = self._loop.call_later(left_s, self._look_for_silence, silence_s)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _raise_end(self, position: int) -> None:
        task = self._tasks[position]
        await asyncio.wait([task])
        error = task.exception()
        raise _early_end(error) from error

    async def next_while_connected(self, http: Request, deadline: float) -> Placed:
        """The next event, looking twice a second whether the caller is still there.

        Raises: ClientGone, TimeoutError at `deadline` (of `time.monotonic`), and as `next`.
        """
        while True:
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + _LOOK_S
                if await http.is_disconnected():
                    self.close()
                    raise ClientGone
            left_s = max(deadline - now, 0.0)
            try:
                return await self.next(min(_LOOK_S, left_s))
            except TimeoutError:
                if left_s <= _LOOK_S:
                    raise

    def close(self) -> None:
        """Stop reading; the client's iterators then cancel the requests at the worker."""
        if self._silence is not None:
            self._silence.cancel()
        for task in self._tasks:
            task.cancel()

    async def _pump(self, position: int, request: ChatRequest) -> None:
        is_over = False

        def deliver(events: Sequence[ChatEvent]) -> None:
            nonlocal is_over
            is_over = events[-1].type in {"done", "failed"}
            self._waiting.extend([(position, event) for event in events])
            self._wake()

        try:
            await self._gateway.client.run_chat(request, deliver)
        finally:
            if not is_over:
                self._waiting.append((position, None))
                self._wake()


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
    """The answer to a caller who has waited too long for the whole of an answer."""
    return Unavailable(f"No answer within {ANSWER_DEADLINE_S:g} s; the model is overloaded.")
