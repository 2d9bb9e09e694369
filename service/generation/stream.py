"""The events of one HTTP request, read by tasks of their own, one for each engine request.

The tasks outlive any cancellation of the request around them just long enough to tell the worker
that nobody reads any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from fastapi import Request

from service.context import Gateway
from service.errors import ApiError, EngineFailed, NoRoom, ServiceError, Unavailable
from service.http.error_responses import from_store
from service.waker import Waker
from workers.client import NoWorker
from workers.errors import StorageFull, StoreError
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
        self._waiting: deque[tuple[int, Sequence[ChatEvent] | None]] = deque()
        self._waker = Waker()
        self._look_at = 0.0
        self._hear: Callable[[int, Sequence[ChatEvent]], None] | None = None
        self._hear_end: Callable[[ApiError], None] = _raise
        self._ended: set[int] = set()
        self._tasks = [
            asyncio.create_task(self._pump(position, request), name=f"chat {request.id}")
            for position, request in enumerate(requests)
        ]
        for position, task in enumerate(self._tasks):
            task.add_done_callback(partial(self._note_end, position))

    async def next(self, timeout_s: float) -> Placed:
        """The next event.

        Raises: TimeoutError when none comes in time; ApiError when the events end early.
        """
        if not self._waiting:
            async with asyncio.timeout(timeout_s):
                await self._waker.sleep()
        position, events = self._waiting.popleft()
        if events is None:
            error = self._tasks[position].exception()
            raise _early_end(error) from error
        if len(events) > 1:
            self._waiting.appendleft((position, events[1:]))
        return position, events[0]

    def listen(
        self,
        hear: Callable[[int, Sequence[ChatEvent]], None],
        hear_end: Callable[[ApiError], None],
    ) -> None:
        """From now on call `hear` with a request's events as they come, in place of `next`.

        `hear_end` is called when the events of a request end early.
        """
        self._hear, self._hear_end = hear, hear_end
        while self._waiting and self._hear is not None:
            self._hand_over(*self._waiting.popleft())

    def _hand_over(self, position: int, events: Sequence[ChatEvent] | None) -> None:
        if self._hear is None:
            return
        if events is None:
            self._hear_end(_early_end(self._tasks[position].exception()))
        else:
            self._hear(position, events)

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
        self._hear = None
        for task in self._tasks:
            task.cancel()

    async def _pump(self, position: int, request: ChatRequest) -> None:
        """Have one request answered; its events are put down here by plain calls."""

        def deliver(events: Sequence[ChatEvent]) -> None:
            if events[-1].type in {"done", "failed"}:
                self._ended.add(position)
            self._put(position, events)

        await self._gateway.client.run_chat(request, deliver)

    def _note_end(self, position: int, task: asyncio.Task[None]) -> None:
        if position not in self._ended and not task.cancelled():
            self._put(position, None)

    def _put(self, position: int, events: Sequence[ChatEvent] | None) -> None:
        if self._hear is not None:
            # Not called here: a mistake in it must not end the reader of all answers.
            self._loop.call_soon(self._hand_over, position, events)
        else:
            self._waiting.append((position, events))
            self._waker.wake()


def _raise(error: ApiError) -> None:
    raise error


def _early_end(error: BaseException | None) -> ApiError:
    if isinstance(error, NoWorker):
        return Unavailable(
            str(error), param="model", code="no_worker_for_model", headers={"Retry-After": "5"}
        )
    if isinstance(error, StorageFull):
        return NoRoom(str(error))
    if isinstance(error, StoreError):
        return from_store(error)
    if error is not None:
        _log.error("a chat answer broke off", exc_info=error)
    return EngineFailed("The worker's answer ended early.", code="answer_incomplete")


def overdue() -> Unavailable:
    """The answer to a caller who has waited too long for the whole of an answer."""
    return Unavailable(f"No answer within {ANSWER_DEADLINE_S:g} s; the model is overloaded.")
