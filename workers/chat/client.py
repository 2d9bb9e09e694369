"""Sends chat requests to workers and yields their events; the gateway's half of a conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from kombu.exceptions import OperationalError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.app import queue_name
from workers.chat.reader import ChatReader, Subscription
from workers.chat.stream import alive_key, cancel_key, request_key
from workers.errors import LanewiseError, QueueFull
from workers.protocol import ChatFailed

if TYPE_CHECKING:
    from workers.chat.stream import ChatTiming
    from workers.protocol import ChatEvent, ChatRequest, WorkerFacts

_NUM_SENDERS = 4
_SOCKET_TIMEOUT_S = 30.0
_LOST = ChatFailed(
    status=503, code="worker_lost", message="the worker was lost; send the request again"
)


class NoWorker(LanewiseError):
    """No living worker serves the model."""

    def __init__(self, model: str) -> None:
        """Remember the model."""
        super().__init__(f"no worker serves the model {model!r} at the moment; try again later")
        self.model = model


class ChatClient:
    """Opens chats; belongs to one event loop.

    Invariants: a consumer that stops early sets the cancel key; an answer whose worker is lost
    ends with `failed`, or with NoWorker before its first event.
    """

    def __init__(
        self,
        redis_url: str,
        publish: Callable[[str, str], None],
        workers: Callable[[], list[WorkerFacts]],
        timing: ChatTiming,
        *,
        max_waiting: int,
    ) -> None:
        """`publish(model, id)` sends the message, `workers()` lists the living; both may block."""
        self._redis = Redis.from_url(redis_url, socket_timeout=_SOCKET_TIMEOUT_S)
        self._reader = ChatReader(self._redis)
        self._publish = publish
        self._workers = workers
        self._timing = timing
        self._max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(_NUM_SENDERS, thread_name_prefix="chat-send")
        self._seen: list[WorkerFacts] = []
        self._seen_s = -1e9

    async def open(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        """The events of an answer, ending with `done` or `failed`.

        Raises: NoWorker before the first event; QueueFull when too many requests wait.
        """
        await self._require_worker(request.model)
        subscription = self._reader.add(request.id)
        refresher = asyncio.create_task(self._keep_alive(request.id))
        is_over = False
        try:
            await self._submit(request)
            while not is_over:
                event = await self._next(request, subscription)
                is_over = event.type != "delta"
                yield event
        finally:
            refresher.cancel()
            self._reader.remove(subscription)
            if not is_over:
                await asyncio.shield(self._cancel(request.id))

    async def close(self) -> None:
        """End the reader and the connections."""
        await self._reader.close()
        await self._redis.aclose()
        self._pool.shutdown(wait=False)

    async def _submit(self, request: ChatRequest) -> None:
        timing = self._timing
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(request_key(request.id), request.model_dump_json(), timing.request_ttl_s)
                pipe.set(alive_key(request.id), "1", timing.alive_ttl_s)
                pipe.xadd(self._reader.wake_key, {"id": request.id}, maxlen=1)
                pipe.expire(self._reader.wake_key, timing.stream_ttl_s)
                pipe.llen(queue_name("llm", request.model))
                num_waiting = int((await pipe.execute())[-1])
            if num_waiting >= self._max_waiting:
                raise QueueFull(num_waiting, 1, self._max_waiting)
            await self._send(request)
        except (RedisError, OperationalError) as error:
            raise NoWorker(request.model) from error

    async def _send(self, request: ChatRequest) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._publish, request.model, request.id)

    async def _next(self, request: ChatRequest, subscription: Subscription) -> ChatEvent:
        num_silences = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timing.silence_s):
                    return await subscription.queue.get()
            num_silences += 1
            with suppress(RedisError):
                await self._check(request, subscription, num_silences)

    async def _check(
        self, request: ChatRequest, subscription: Subscription, num_silences: int
    ) -> None:
        """After a silence: is the worker still there, and was the request taken at all?"""
        if subscription.worker:
            living = {facts.id for facts in await self._living()}
            if subscription.worker not in living and subscription.queue.empty():
                subscription.queue.put_nowait(_LOST)
            return
        await self._require_worker(request.model)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.exists(request_key(request.id))
            pipe.llen(queue_name("llm", request.model))
            is_there, num_waiting = cast("list[int]", await pipe.execute())
        if subscription.worker or num_silences < 2:
            return
        if not is_there:
            subscription.queue.put_nowait(_LOST)
        elif num_waiting == 0 and num_silences % 5 == 2:
            await self._send(request)

    async def _require_worker(self, model: str) -> None:
        if not any(facts.model == model for facts in await self._living()):
            raise NoWorker(model)

    async def _living(self) -> list[WorkerFacts]:
        """The language workers heard of lately, looked up at most once a second."""
        if time.monotonic() - self._seen_s > 1.0:
            loop = asyncio.get_running_loop()
            facts = await loop.run_in_executor(self._pool, self._workers)
            self._seen = [f for f in facts if f.role == "llm" and f.state != "failed"]
            self._seen_s = time.monotonic()
        return self._seen

    async def _keep_alive(self, chat_id: str) -> None:
        while True:
            await asyncio.sleep(self._timing.alive_refresh_s)
            with suppress(RedisError):
                await self._redis.set(alive_key(chat_id), "1", self._timing.alive_ttl_s)

    async def _cancel(self, chat_id: str) -> None:
        with suppress(RedisError):
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(cancel_key(chat_id), "1", self._timing.request_ttl_s)
                pipe.delete(alive_key(chat_id), request_key(chat_id))
                await pipe.execute()
