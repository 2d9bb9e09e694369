"""Writes the answers of a worker's running requests to their streams, many at a time."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from workers.chat.stream import StreamEntry, token_key

if TYPE_CHECKING:
    from redis import Redis

    from workers.chat.stream import ChatTiming
    from workers.protocol import ChatEvent

_logger = logging.getLogger(__name__)
_RETRY_S = 0.5


@dataclass(slots=True)
class _Answer:
    number: int = 0
    waiting: list[ChatEvent] = field(default_factory=list["ChatEvent"])
    is_dirty: bool = False
    is_over: bool = False


class ChatPublisher:
    """One thread, one pipeline per `batch_s` for all requests together.

    The first event after a pause leaves at once; events that follow within `batch_s` share a
    write. Invariants: entries of one request are written in order and none is dropped; while
    Redis is away they wait here, bounded by the requests' own token limits.
    """

    def __init__(self, redis: Redis, worker: str, timing: ChatTiming) -> None:
        """Write to `redis` as `worker`; `start` begins."""
        self._redis = redis
        self._worker = worker
        self._timing = timing
        self._answers: dict[str, _Answer] = {}
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="chat-publisher", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits, then end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def open(self, chat_id: str) -> None:
        """Tell the reader that this worker has the request."""
        with self._changed:
            self._answers[chat_id] = _Answer(is_dirty=True)
            self._changed.notify()

    def put(self, chat_id: str, event: ChatEvent) -> None:
        """Append one event to the answer; `done` and `failed` close it."""
        with self._changed:
            answer = self._answers.get(chat_id)
            if answer is None or answer.is_over:
                return
            answer.waiting.append(event)
            answer.is_dirty = True
            answer.is_over = event.type != "delta"
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_stopping and not self._has_work():
                    self._changed.wait()
                if self._is_stopping and not self._has_work():
                    return
                batch = self._take()
            started_s = time.monotonic()
            if not self._write(batch):
                return
            pause_s = self._timing.batch_s - (time.monotonic() - started_s)
            if pause_s > 0 and any(entry.events for _, entry in batch):
                time.sleep(pause_s)

    def _has_work(self) -> bool:
        return any(answer.is_dirty for answer in self._answers.values())

    def _take(self) -> list[tuple[str, StreamEntry]]:
        batch: list[tuple[str, StreamEntry]] = []
        for chat_id, answer in list(self._answers.items()):
            if not answer.is_dirty:
                continue
            batch.append((chat_id, StreamEntry(answer.number, self._worker, (*answer.waiting,))))
            answer.number += 1
            answer.waiting = []
            answer.is_dirty = False
            if answer.is_over:
                del self._answers[chat_id]
        return batch

    def _write(self, batch: list[tuple[str, StreamEntry]]) -> bool:
        """Write, trying again for as long as Redis is away; False when told to stop meanwhile."""
        while True:
            try:
                self._write_once(batch)
            except RedisError as error:
                _logger.warning("chat stream write failed, trying again: %s", error)
                if self._is_stopping:
                    return False
                time.sleep(_RETRY_S)
            else:
                return True

    def _write_once(self, batch: list[tuple[str, StreamEntry]]) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for chat_id, entry in batch:
                key = token_key(chat_id)
                fields: dict[Any, Any] = entry.fields()
                pipe.xadd(key, fields, maxlen=self._timing.stream_max_entries, approximate=True)
                pipe.expire(key, self._timing.stream_ttl_s)
            pipe.execute()
