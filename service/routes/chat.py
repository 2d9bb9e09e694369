"""POST /v1/chat/completions."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from service.auth import ChatKey
from service.catalog import ready_llm
from service.chat.answer import Answer, Chunks, Head, failure
from service.chat.pump import ANSWER_DEADLINE_S, ChatStream, ClientGone, overdue
from service.context import Gateway, GatewayDep
from service.errors import ApiError
from service.http.body import read_json, validate
from service.http.openapi import errors, json_body
from service.http.stream import DONE, KEEP_ALIVE, KEEP_ALIVE_S, EventStream, sse
from service.ids import make_chat_id
from service.schemas.chat import ChatBody
from service.schemas.chat_refusals import refuse_unsupported, unknown_fields
from workers.protocol import ChatDelta, ChatDone, ChatEvent, ChatFailed

router = APIRouter(tags=["chat"])
_log = logging.getLogger("lanewise.service")
_FIRST_EVENT_S = 10.0
_GONE_STATUS = 499
_KNOWN = set(ChatBody.model_fields)


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation, whole or as a stream of chunks",
    response_model=None,
    responses=errors(404, 413, 415, 429, 500, 503),
    openapi_extra=json_body(ChatBody),
)
async def create_chat_completion(request: Request, gateway: GatewayDep, key: ChatKey) -> Response:
    """OpenAI's chat completions.

    Differences: `n` is at most 8; tools and response formats other than text are refused;
    `top_k`, `min_p` and `repetition_penalty` are taken as in vLLM. A prompt that fits is answered
    up to the end of the context (`finish_reason` "length") where `max_tokens` would pass it.
    """
    raw = await read_json(request)
    refuse_unsupported(raw)
    body = validate(ChatBody, raw)
    if unknown := unknown_fields(raw, _KNOWN):
        _log.warning("ignored unknown chat fields: %s", ", ".join(unknown[:20]))
    worker = await run_in_threadpool(ready_llm, gateway, body.model)
    chat_id = make_chat_id()
    stream = ChatStream(gateway, body.to_request(chat_id, worker.llm))
    turn = _Turn(
        gateway, stream, body, Head(id=chat_id, created=int(time.time()), model=body.model)
    )
    try:
        return await (turn.streamed(request) if body.stream else turn.whole(request))
    except ClientGone:
        return Response(status_code=_GONE_STATUS)
    except BaseException:
        stream.close()
        raise


class _Turn:
    """One request on its way to an answer."""

    def __init__(self, gateway: Gateway, stream: ChatStream, body: ChatBody, head: Head) -> None:
        self._metrics = gateway.metrics
        self._stream = stream
        self._body = body
        self._head = head
        self._started = time.monotonic()
        self._has_begun = False

    async def whole(self, http: Request) -> Response:
        """Wait for the end; a caller who hangs up frees the worker."""
        answer = Answer(
            self._head, num_choices=self._body.n or 1, has_logprobs=bool(self._body.logprobs)
        )
        deadline = self._started + ANSWER_DEADLINE_S
        while True:
            try:
                event = self._note(await self._stream.next_while_connected(http, deadline))
            except TimeoutError as error:
                raise overdue() from error
            if isinstance(event, ChatDone):
                return self._answer(answer.finish(event))
            answer.add(event)

    async def streamed(self, http: Request) -> Response:
        """Hold the headers until the first event, so that an early failure has a real status."""
        try:
            first = await self._stream.next_while_connected(http, self._started + _FIRST_EVENT_S)
            first = self._note(first)
        except TimeoutError:
            first = None
        return EventStream(self._lines(first), on_close=self._stream.close)

    async def _lines(self, event: ChatDelta | ChatDone | None) -> AsyncIterator[bytes]:
        chunks = Chunks(
            self._head, num_choices=self._body.n or 1, has_usage=self._body.has_usage_chunk
        )
        try:
            for chunk in chunks.first():
                yield sse(chunk)
            while not isinstance(event, ChatDone):
                for chunk in chunks.of(event) if event else ():
                    yield sse(chunk)
                event = await self._next_or_none()
                if event is None:
                    yield KEEP_ALIVE
            for chunk in chunks.last(event):
                yield sse(chunk)
            yield DONE
        except ApiError as error:
            yield sse(error.body())

    async def _next_or_none(self) -> ChatDelta | ChatDone | None:
        try:
            return self._note(await self._stream.next(KEEP_ALIVE_S))
        except TimeoutError:
            return None

    def _note(self, event: ChatEvent) -> ChatDelta | ChatDone:
        """Measure; a failure becomes an exception."""
        model = self._head.model
        if not self._has_begun:
            self._has_begun = True
            self._metrics.observe_first_event(model, time.monotonic() - self._started)
        if isinstance(event, ChatFailed):
            self._metrics.count_chat_failure(model, event.code)
            raise failure(event)
        if isinstance(event, ChatDone):
            self._metrics.count_tokens(
                model,
                prompt=event.prompt_tokens,
                cached=event.cached_tokens,
                completion=event.completion_tokens,
            )
        return event

    def _answer(self, content: dict[str, Any]) -> JSONResponse:
        if self._body.metadata:
            content["metadata"] = self._body.metadata
        elapsed_ms = int((time.monotonic() - self._started) * 1000)
        return JSONResponse(content, headers={"openai-processing-ms": str(elapsed_ms)})
