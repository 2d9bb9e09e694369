"""The gateway's side of chat: one blocking reader per process, fanning out to its requests."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from redis.exceptions import RedisError

from workers.chat.stream import StreamEntry, reply_key
from workers.protocol import ChatFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection

    from workers.chat.stream import ChatTiming
    from workers.errors import NoWorker
    from workers.protocol import ChatEvent

_logger = logging.getLogger(__name__)
_BLOCK_MS = 5_000
_MAX_ENTRIES = 200
_RETRY_S = 0.2
_LAST = frozenset({"done", "failed"})
_GAP = ChatFailed(
    status=503, code="stream_lost", message="a part of the answer was lost; send it again"
)


# What one entry says of one answer: worker, number, events.
Heard = tuple[str, int, "Sequence[ChatEvent]"]


@dataclass(slots=True, eq=False)
class Subscription:
    """One answer as it arrives; `deliver` hears its events, in order, until `is_over`.

    `worker` is empty until a worker has taken the request. Made on a running event loop.
    """

    chat_id: str
    deliver: Callable[[Sequence[ChatEvent]], None]
    worker: str = ""
    next_number: int = 0
    num_heard: int = 0
    is_over: bool = False
    _end: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def take(self, parts: Sequence[Heard]) -> None:
        """Deliver the events of parts that came together, in one call.

        A repeated part is dropped, a missing one ends the answer.
        """
        ready: list[ChatEvent] = []
        for worker, number, events in parts:
            if number < self.next_number:
                continue
            if number > self.next_number:
                ready.append(_GAP)
                break
            self.next_number = number + 1
            self.num_heard += 1
            self.worker = worker
            ready += events
        if ready:
            self.give(ready)

    def give(self, events: Sequence[ChatEvent]) -> None:
        """Deliver events; `done` and `failed` end the answer. After its end nothing happens."""
        if self._end.done():
            return
        self.deliver(events)
        if events[-1].type in _LAST:
            self.is_over = True
            self._end.set_result(None)

    def fail(self, error: NoWorker) -> None:
        """End without an event: `wait` raises `error`."""
        if not self._end.done():
            self._end.set_exception(error)

    async def wait(self) -> None:
        """Wait for the end. Raises: NoWorker."""
        await self._end


class ChatReader:
    """Reads all answers of this process from one stream of its own.

    Reading starts at 0-0 of a stream that nobody used before and goes on from the last id, so
    nothing is missed and a Redis error costs only time. What was read is trimmed away. Events are
    delivered by plain calls, which must not block or raise: a slow consumer stalls nobody.
    """

    def __init__(self, redis: Redis, timing: ChatTiming) -> None:
        """Read from `redis`, whose socket time-out must be longer than the 5 s of a read."""
        self._redis = redis
        self._timing = timing
        self._key = reply_key(secrets.token_hex(8))
        self._last_id = b"0-0"
        self._trimmed_s = time.monotonic()
        self._open: dict[str, Subscription] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def key(self) -> str:
        """The stream that workers must answer to."""
        return self._key

    def add(self, chat_id: str, deliver: Callable[[Sequence[ChatEvent]], None]) -> Subscription:
        """Start to read an answer."""
        subscription = Subscription(chat_id, deliver)
        self._open[chat_id] = subscription
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="chat-reader")
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Stop to read an answer."""
        self._open.pop(subscription.chat_id, None)

    async def close(self) -> None:
        """End the reader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._open:
            try:
                async with self._connected() as connection:
                    while self._open:
                        self._hear(_entries(await self._read(connection)))
                        await self._trim()
            except (RedisError, OSError) as error:
                _logger.warning("chat streams cannot be read, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[AbstractConnection]:
        """A connection of its own: the layers of `Redis.xread` cost more than the read itself."""
        pool = self._redis.connection_pool
        connection = await pool.get_connection()
        try:
            yield connection
        except BaseException:
            await connection.disconnect(nowait=True)  # an answer may be under way
            raise
        finally:
            await pool.release(connection)

    async def _read(self, connection: AbstractConnection) -> object:
        await connection.send_command(
            "XREAD", "COUNT", _MAX_ENTRIES, "BLOCK", _BLOCK_MS, "STREAMS", self._key, self._last_id
        )
        return await connection.read_response()

    def _hear(self, entries: _Entries) -> None:
        """Hand out what was read, to each answer once."""
        heard: dict[str, list[Heard]] = {}
        for entry_id, fields in entries:
            self._last_id = entry_id
            entry = StreamEntry.parse(fields)
            for chat_id, number, events in entry.parts:
                heard.setdefault(chat_id, []).append((entry.worker, number, events))
        for chat_id, parts in heard.items():
            subscription = self._open.get(chat_id)
            if subscription is not None:
                subscription.take(parts)

    async def _trim(self) -> None:
        if time.monotonic() - self._trimmed_s > self._timing.stream_trim_s:
            self._trimmed_s = time.monotonic()
            await self._redis.xtrim(self._key, minid=self._last_id)


_Raw = list[tuple[bytes, list[bytes]]]
_Entries = list[tuple[bytes, dict[bytes, bytes]]]


def _entries(found: object) -> _Entries:
    """XREAD's raw answer for one key: pairs in RESP2, a mapping in RESP3; None for nothing."""
    if not found:
        return []
    if isinstance(found, dict):
        raw = next(iter(cast("dict[bytes, _Raw]", found).values()))
    else:
        raw = cast("list[tuple[bytes, _Raw]]", found)[0][1]
    return [(entry_id, dict(zip(flat[::2], flat[1::2], strict=True))) for entry_id, flat in raw]
