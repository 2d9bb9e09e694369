"""One HTTP request on its way to a generated answer: whole, or as a stream of chunks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from service.context import Gateway
from service.errors import (
    ApiError,
    BadRequest,
    DeadlinePassed,
    EngineFailed,
    TooManyRequests,
    Unavailable,
)
from service.generation.joining import joined
from service.generation.stream import (
    ANSWER_DEADLINE_S,
    ClientGone,
    EventMerge,
    Placed,
    overdue,
)
from service.http.pushed_stream import PushedStream
from service.http.stream import DONE, KEEP_ALIVE_S, sse
from workers.protocol import (
    ChatDelta,
    ChatDone,
    ChatEvent,
    ChatFailed,
    ChatRequest,
    PromptScored,
)

_FIRST_EVENT_S = 10.0
_GONE_STATUS = 499
_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    408: DeadlinePassed,
    429: TooManyRequests,
    503: Unavailable,
}
Json = dict[str, Any]


class Shape(Protocol):
    """The form of an answer. A position is that of the engine request an event belongs to."""

    def add(self, position: int, event: ChatDelta | PromptScored) -> None:
        """Keep an event of a whole answer."""
        ...

    def finish(self, dones: Sequence[ChatDone]) -> Json:
        """The whole answer; `dones` are the ends of all engine requests."""
        ...

    def first(self) -> list[Json]:
        """Chunks that begin a stream."""
        ...

    def lines(self, position: int, event: ChatDelta | PromptScored) -> list[bytes]:
        """The chunks of one event, each as a line of the stream."""
        ...

    def last(self, dones: Sequence[ChatDone]) -> list[Json]:
        """Chunks that end a stream."""
        ...


class Turn:
    """Runs the engine requests of one HTTP request and gives their events a shape.

    The headers of a stream are held back until the first event, so that what is refused has a
    real status and not one byte of a stream.
    """

    def __init__(
        self,
        gateway: Gateway,
        requests: Sequence[ChatRequest],
        shape: Shape,
        headers: Mapping[str, str],
    ) -> None:
        """Start the requests, on the running loop."""
        self._metrics = gateway.metrics
        self._model = requests[0].model
        self._shape = shape
        self._headers = dict(headers)
        self._events = EventMerge(gateway, requests)
        self._dones: dict[int, ChatDone] = {}
        self._num_requests = len(requests)
        self._started = time.monotonic()
        self._has_begun = False
        self._stream: PushedStream

    async def answer(self, http: Request, *, is_streamed: bool) -> Response:
        """The response. Raises: ApiError for what failed before the first event."""
        try:
            return await (self._streamed(http) if is_streamed else self._whole(http))
        except ClientGone:
            return Response(status_code=_GONE_STATUS)
        except BaseException:
            self._events.close()
            raise

    async def _whole(self, http: Request) -> Response:
        """Wait for the end; a caller who hangs up frees the worker."""
        deadline = self._started + ANSWER_DEADLINE_S
        while len(self._dones) < self._num_requests:
            try:
                placed = await self._events.next_while_connected(http, deadline)
            except TimeoutError as error:
                raise overdue() from error
            if (event := self._note(placed)) is not None:
                self._shape.add(placed[0], event)
        elapsed_ms = int((time.monotonic() - self._started) * 1000)
        headers = self._headers | {"openai-processing-ms": str(elapsed_ms)}
        return JSONResponse(self._shape.finish(self._ends()), headers=headers)

    async def _streamed(self, http: Request) -> Response:
        begun: list[bytes] = []
        try:
            first = await self._events.next_while_connected(http, self._started + _FIRST_EVENT_S)
        except TimeoutError:
            pass  # a caller who waits long gets the headers, and keep-alives
        else:
            begun = self._lines(first)
        self._stream = PushedStream(
            on_close=self._events.close, keep_alive_s=KEEP_ALIVE_S, headers=self._headers
        )
        self._stream.write(b"".join([*map(sse, self._shape.first()), *begun]))
        self._end_if_done([])
        self._events.listen(self._hear, self._break_off)
        return self._stream

    def _hear(self, position: int, events: Sequence[ChatEvent]) -> None:
        """Write what is there at once in one piece: a write costs more than its bytes."""
        lines: list[bytes] = []
        is_heard = False
        try:
            for placed in joined([(position, event) for event in events]):
                lines += self._lines(placed)
            is_heard = True
        except ApiError as error:
            is_heard = True
            self._break_off(error, lines)
            return
        finally:
            if not is_heard:
                self._stream.abort()
        if not self._end_if_done(lines) and lines:
            self._stream.write(b"".join(lines))

    def _end_if_done(self, lines: list[bytes]) -> bool:
        is_done = len(self._dones) == self._num_requests
        if is_done:
            lines += map(sse, self._shape.last(self._ends()))
            self._stream.end(b"".join([*lines, DONE]))
        return is_done

    def _break_off(self, error: ApiError, lines: Sequence[bytes] = ()) -> None:
        self._events.close()
        self._stream.end(b"".join([*lines, sse(error.body())]))

    def _lines(self, placed: Placed) -> list[bytes]:
        event = self._note(placed)
        return [] if event is None else self._shape.lines(placed[0], event)

    def _note(self, placed: Placed) -> ChatDelta | PromptScored | None:
        """Measure; an end is kept, a failure becomes an exception."""
        position, event = placed
        if not self._has_begun:
            self._has_begun = True
            self._metrics.observe_first_event(self._model, time.monotonic() - self._started)
        if isinstance(event, ChatFailed):
            self._metrics.count_chat_failure(self._model, event.code)
            raise failure(event)
        if not isinstance(event, ChatDone):
            return event
        self._dones[position] = event
        self._metrics.count_answer(self._model, event)
        return None

    def _ends(self) -> list[ChatDone]:
        return [self._dones[position] for position in sorted(self._dones)]


def failure(event: ChatFailed) -> ApiError:
    """The worker's failure as an answer."""
    kind = _BY_STATUS.get(event.status, EngineFailed)
    return kind(event.message, param=event.param, code=event.code)


def usage(dones: Sequence[ChatDone]) -> Json:
    """Tokens of an answer in OpenAI's shape, over all its engine requests."""

    def total(name: str) -> int:
        return sum(getattr(done, name) for done in dones)

    prompt, completion = total("prompt_tokens"), total("completion_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": total("cached_tokens")},
        "completion_tokens_details": {
            "reasoning_tokens": total("reasoning_tokens"),
            "accepted_prediction_tokens": total("accepted_draft_tokens"),
            "rejected_prediction_tokens": total("rejected_draft_tokens"),
        },
    }
