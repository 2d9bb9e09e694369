"""The gateway's side of chat: one blocking reader per process, fanning out to its requests."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError

from workers.chat.stream import StreamEntry, token_key
from workers.protocol import ChatFailed

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from workers.protocol import ChatEvent

_logger = logging.getLogger(__name__)
_BLOCK_MS = 5_000
_MAX_ENTRIES = 200
_RETRY_S = 0.2
_GAP = ChatFailed(
    status=503, code="stream_lost", message="a part of the answer was lost; send it again"
)


@dataclass(slots=True, eq=False)
class Subscription:
    """One answer as it arrives. `worker` is empty until a worker has taken the request."""

    chat_id: str
    queue: asyncio.Queue[ChatEvent] = field(default_factory=asyncio.Queue["ChatEvent"])
    worker: str = ""
    last_id: bytes = b"0-0"
    next_number: int = 0

    def take(self, entry: StreamEntry) -> None:
        """Queue an entry's events; a repeated entry is dropped, a missing one ends the answer."""
        if entry.number < self.next_number:
            return
        if entry.number > self.next_number:
            self.queue.put_nowait(_GAP)
        self.next_number = entry.number + 1
        self.worker = entry.worker
        for event in entry.events:
            self.queue.put_nowait(event)


class ChatReader:
    """Reads all open answers with one XREAD.

    A stream of its own wakes the blocked read when an answer is added. Reading starts at 0-0 of
    each stream and goes on from the last id, so nothing is missed and a Redis error costs only
    time. Queues are unbounded, since answers are: a slow consumer stalls nobody.
    """

    def __init__(self, redis: Redis) -> None:
        """Read from `redis`, whose socket time-out must be longer than the 5 s of a read."""
        self._redis = redis
        self._wake_key = f"wake:{secrets.token_hex(8)}"
        self._wake_id = b"0-0"
        self._open: dict[bytes, Subscription] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def wake_key(self) -> str:
        """The stream to append to after `add`, in the same pipeline as the request."""
        return self._wake_key

    def add(self, chat_id: str) -> Subscription:
        """Start to read an answer."""
        subscription = Subscription(chat_id)
        self._open[token_key(chat_id).encode()] = subscription
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="chat-reader")
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Stop to read an answer."""
        self._open.pop(token_key(subscription.chat_id).encode(), None)

    async def close(self) -> None:
        """End the reader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._open:
            try:
                await self._read_once()
            except (RedisError, OSError) as error:
                _logger.warning("chat streams cannot be read, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _read_once(self) -> None:
        ids: dict[Any, Any] = {key: entry.last_id for key, entry in self._open.items()}
        ids[self._wake_key.encode()] = self._wake_id
        found = await self._redis.xread(ids, count=_MAX_ENTRIES, block=_BLOCK_MS)
        for key, entries in _pairs(found):
            if key == self._wake_key.encode():
                self._wake_id = entries[-1][0]
                continue
            subscription = self._open.get(key)
            if subscription is None:
                continue
            for entry_id, fields in entries:
                subscription.last_id = entry_id
                subscription.take(StreamEntry.parse(fields))


_Entries = list[tuple[bytes, dict[bytes, bytes]]]


def _pairs(found: object) -> list[tuple[bytes, _Entries]]:
    """XREAD's answer, which is a list of pairs in RESP2 and a mapping in RESP3."""
    if not found:
        return []
    if isinstance(found, dict):
        mapping = cast("dict[bytes, list[_Entries]]", found)
        return [(key, entries[0]) for key, entries in mapping.items()]
    return cast("list[tuple[bytes, _Entries]]", found)
