"""Sends chat requests to workers and hears their events; the gateway's half of a conversation."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from workers.app import queue_name
from workers.chat.message import chat_message
from workers.chat.reader import ChatReader, Subscription
from workers.chat.stream import ChatLetter, alive_key, cancel_key, request_key
from workers.errors import NoWorker, QueueFull, StorageFull
from workers.protocol import ChatFailed
from workers.shared_lookup import SharedLookup

if TYPE_CHECKING:
    from workers.chat.stream import ChatTiming
    from workers.protocol import ChatEvent, ChatRequest, WorkerFacts

_logger = logging.getLogger(__name__)
_Seen = TypeVar("_Seen")
_NUM_LOOKERS = 2
_NUM_CONNECTIONS = 16
_SOCKET_TIMEOUT_S = 30.0
# A worker takes a request before it says so, and a busy one says so late.
_NUM_LOST_SILENCES = 4
_LOST = ChatFailed(
    status=503, code="worker_lost", message="the worker was lost; send the request again"
)
_FULL = ChatFailed(status=503, code="storage_full", message=str(StorageFull()))
# Redis writes nothing while its own file finds no room, and names the system's reason.
_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


class ChatClient:
    """Runs chats; belongs to one event loop.

    Invariants: a caller that stops early sets the cancel key; an answer whose worker is lost
    ends with `failed`, or with NoWorker before its first event.
    """

    def __init__(
        self,
        redis_url: str,
        workers: Callable[[], list[WorkerFacts]],
        timing: ChatTiming,
        *,
        check_room: Callable[[], None],
        max_waiting: int,
    ) -> None:
        """`workers()` lists the living, `check_room()` may raise StorageFull; both may block."""
        # A burst of requests waits for a connection; without a bound each would open its own.
        pool = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=_NUM_CONNECTIONS,
            timeout=_SOCKET_TIMEOUT_S,
            socket_timeout=_SOCKET_TIMEOUT_S,
        )
        self._redis = Redis.from_pool(pool)
        self._reader = ChatReader(self._redis, timing)
        self._workers = workers
        self._check_room = check_room
        self._timing = timing
        self._max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(_NUM_LOOKERS, thread_name_prefix="chat-look")
        self._seen: list[WorkerFacts] = []
        self._lookups: SharedLookup[str, list[WorkerFacts]] = SharedLookup()
        self._seen_s = -1e9

    async def run(
        self, request: ChatRequest, deliver: Callable[[Sequence[ChatEvent]], None]
    ) -> None:
        """Have a request answered; `deliver` hears its events, the last of them `done` or `failed`.

        Cancel it to stop early. `deliver` is called on the event loop; it must not raise.
        Raises: NoWorker before the first event; QueueFull when too many requests wait; StorageFull
        when no request can be sent, or no worker be heard, for want of room.
        """
        await self._require_worker(request.model)
        subscription = self._reader.add(request.id, deliver)
        watching: asyncio.Task[None] | None = None
        try:
            await self._submit(request)
            watching = asyncio.create_task(
                self._watch(request, subscription), name=f"chat-watch {request.id}"
            )
            await subscription.wait()
        finally:
            if watching is not None:
                watching.cancel()
            self._reader.remove(subscription)
            if not subscription.is_over:
                await asyncio.shield(self._cancel(request.id))

    async def close(self) -> None:
        """End the reader and the connections."""
        await self._reader.close()
        await self._redis.aclose()
        self._pool.shutdown(wait=False)

    async def _submit(self, request: ChatRequest) -> None:
        """Request, sign of life and message in one round trip.

        A message over the limit is taken back; a worker that was quicker finds no request.
        """
        timing = self._timing
        letter = ChatLetter(reply_to=self._reader.key, request=request).model_dump_json()
        queue = queue_name("llm", request.model)
        message = chat_message(request.model, request.id)
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(request_key(request.id), letter, timing.request_ttl_s)
                pipe.set(alive_key(request.id), "1", timing.alive_ttl_s)
                pipe.lpush(queue, message)
                num_waiting = int((await pipe.execute())[-1]) - 1
            if num_waiting >= self._max_waiting:
                await self._redis.lrem(queue, 1, message)
                raise QueueFull(num_waiting, 1, self._max_waiting)
        except RedisError as error:
            _logger.warning("chat %s cannot be sent: %s", request.id, error)
            if says_full(error):
                raise StorageFull from error
            raise NoWorker(request.model) from error

    async def _send_again(self, request: ChatRequest) -> None:
        queue = queue_name("llm", request.model)
        await self._redis.lpush(queue, chat_message(request.model, request.id))

    async def _watch(self, request: ChatRequest, subscription: Subscription) -> None:
        """Tell workers that somebody reads, and look after them whenever they fall silent.

        A task of its own, so that an event costs no timer.
        """
        timing = self._timing
        num_silences, num_heard, alive_s, is_full = 0, 0, time.monotonic(), False
        while True:
            await asyncio.sleep(min(timing.silence_s, timing.alive_refresh_s))
            if time.monotonic() - alive_s >= timing.alive_refresh_s:
                alive_s = time.monotonic()
                is_full = await self._tell_alive(request.id)
            if subscription.num_heard > num_heard:
                num_silences, num_heard = 0, subscription.num_heard
                continue
            num_silences += 1
            try:
                if is_full:  # then the worker cannot write its answer either
                    raise StorageFull
                await self._check(request, subscription, num_silences)
            except RedisError as error:
                _logger.warning("cannot look after chat %s: %s", request.id, error)
            except StorageFull:
                subscription.give([_FULL])
                return
            except NoWorker as error:
                subscription.fail(error)
                return

    async def _tell_alive(self, chat_id: str) -> bool:
        """Say that somebody reads; whether Redis has no room to note it."""
        try:
            await self._redis.set(alive_key(chat_id), "1", self._timing.alive_ttl_s)
        except RedisError as error:
            return says_full(error)
        return False

    async def _check(
        self, request: ChatRequest, subscription: Subscription, num_silences: int
    ) -> None:
        """After a silence: is the worker still there, and was the request taken at all?

        Raises: NoWorker, StorageFull.
        """
        if subscription.worker:
            living = {facts.id for facts in await self._living()}
            if subscription.worker not in living:
                await self._look(self._check_room)
                subscription.give([_LOST])
            return
        await self._require_worker(request.model)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.exists(request_key(request.id))
            pipe.llen(queue_name("llm", request.model))
            is_there, num_waiting = cast("list[int]", await pipe.execute())
        if subscription.worker:
            return
        if not is_there:
            if num_silences >= _NUM_LOST_SILENCES:
                subscription.give([_LOST])
        elif num_waiting == 0 and num_silences % 5 == 2:
            await self._send_again(request)

    async def _require_worker(self, model: str) -> None:
        if not any(facts.model == model for facts in await self._living()):
            await self._look(self._check_room)
            raise NoWorker(model)

    async def _living(self) -> list[WorkerFacts]:
        """The language workers heard of lately, looked up at most once a second."""
        if time.monotonic() - self._seen_s > 1.0:
            self._seen = await self._lookups.get("workers", self._look_up)
            self._seen_s = time.monotonic()
        return self._seen

    async def _look_up(self) -> list[WorkerFacts]:
        facts = await self._look(self._workers)
        return [f for f in facts if f.role == "llm" and f.state != "failed"]

    async def _look(self, look: Callable[[], _Seen]) -> _Seen:
        return await asyncio.get_running_loop().run_in_executor(self._pool, look)

    async def _cancel(self, chat_id: str) -> None:
        with suppress(RedisError):
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(cancel_key(chat_id), "1", self._timing.request_ttl_s)
                pipe.delete(alive_key(chat_id), request_key(chat_id))
                await pipe.execute()


def says_full(error: RedisError) -> bool:
    """Whether Redis refuses to write because its disk is full."""
    return any(reason in str(error) for reason in _NO_ROOM)
