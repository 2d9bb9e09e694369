"""Writes the answers of a worker's running requests, many at a time, on one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from llm_engine.types import TextDelta
from workers.chat.stream import entry_fields
from workers.chat.stream_interval import StreamInterval
from workers.chat.translation import EngineItem, Values, to_wire
from workers.protocol import ChatFailed
from workers.thread_names import name_this_thread

if TYPE_CHECKING:
    from redis import Redis

    from workers.chat.stream import ChatTiming, Written

_logger = logging.getLogger(__name__)
_RETRY_S = 0.5
_REFRESH_S = 60.0
# Far below the silence after which a gateway asks whether anybody has its request.
_HOLD_S = 0.1
_LAST = frozenset({"done", "failed"})


@dataclass(slots=True)
class _Answer:
    reply_to: str
    number: int = 0
    waiting: list[Values] = field(default_factory=list[Values])
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Opened:
    reply_to: str


_Item = EngineItem | ChatFailed | _Opened
_Batch = dict[str, "list[Written]"]  # by stream


class ChatPublisher:
    """One thread turns what the engine says into one write per `interval` and gateway.

    `put` costs the engine's thread an append: translating, encoding and writing happen here. The
    first event after a pause leaves at once; events that follow within the interval share a write,
    and word that a request was taken waits up to 0.1 s for its first event.
    Invariants: the parts of one answer are written in order and none is dropped; while Redis is
    away they wait here, bounded by the requests' own token limits.
    """

    def __init__(
        self,
        redis: Redis,
        worker: str,
        timing: ChatTiming,
        interval: StreamInterval,
        *,
        on_end: Callable[[str, Values], None],
    ) -> None:
        """Write to `redis` as `worker`; `on_end` hears each answer's id and last event, once."""
        self._redis = redis
        self._worker = worker
        self._timing = timing
        self._interval = interval
        self._on_end = on_end
        self._items: deque[tuple[str, _Item]] = deque()
        self._answers: dict[str, _Answer] = {}
        self._refreshed_s: dict[str, float] = {}
        self._wake = threading.Event()
        self._unheard: set[str] = set()
        self._urgent = threading.Event()  # somebody waits for a first or a last event
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="chat-publisher", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits, then end the thread."""
        self._is_stopping = True
        self._wake.set()
        self._urgent.set()
        self._thread.join(timeout_s)

    def open(self, chat_id: str, reply_to: str) -> None:
        """Tell the reader of the stream `reply_to` that this worker has the request."""
        self._unheard.add(chat_id)
        self._append(chat_id, _Opened(reply_to))

    def put(self, chat_id: str, item: EngineItem | ChatFailed) -> None:
        """Append to an answer; `Finished` and errors close it, and what follows is dropped."""
        self._append(chat_id, item)
        if chat_id in self._unheard or not isinstance(item, TextDelta):
            self._unheard.discard(chat_id)
            self._urgent.set()

    def _append(self, chat_id: str, item: _Item) -> None:
        self._items.append((chat_id, item))
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        name_this_thread(self._thread.name)
        batch: _Batch = {}
        write_at_s = 0.0
        while True:
            # Openings alone wait for company, since a first token is seldom far.
            left_s = write_at_s - time.monotonic() if batch else None
            is_woken = (left_s is None or left_s > 0) and self._wake.wait(left_s)
            # Cleared before the items are taken: one that comes later sets it again.
            self._wake.clear()
            self._urgent.clear()
            started_s = time.monotonic()
            write_at_s = write_at_s if batch else started_s + _HOLD_S
            ended = self._take(batch)
            has_events = any(events for parts in batch.values() for _, _, events in parts)
            if is_woken and not has_events and not self._is_stopping:
                continue
            if not self._write(batch):
                return
            batch = {}
            for chat_id, last in ended:
                self._on_end(chat_id, last)
            if self._is_stopping and not self._items:
                return
            if has_events:
                self._pause(started_s)

    def _pause(self, started_s: float) -> None:
        """Let events gather; a first or a last one waits for the short interval alone."""
        short_s = self._interval.short_s - (time.monotonic() - started_s)
        if short_s > 0:
            time.sleep(short_s)
        left_s = self._interval.seconds(len(self._answers)) - (time.monotonic() - started_s)
        if left_s > 0:
            self._urgent.wait(left_s)

    def _take(self, batch: _Batch) -> list[tuple[str, Values]]:
        """Put what waits into `batch`; the answers that end with it."""
        touched: dict[str, _Answer] = {}
        while self._items:
            chat_id, item = self._items.popleft()
            if isinstance(item, _Opened):
                self._answers[chat_id] = _Answer(item.reply_to)
            answer = self._answers.get(chat_id)
            if answer is None or answer.is_over:
                continue
            touched[chat_id] = answer
            if not isinstance(item, _Opened):
                event = item.model_dump() if isinstance(item, ChatFailed) else to_wire(item)
                answer.waiting.append(event)
                answer.is_over = event["type"] in _LAST
        ended: list[tuple[str, Values]] = []
        for chat_id, answer in touched.items():
            batch.setdefault(answer.reply_to, []).append((chat_id, answer.number, answer.waiting))
            if answer.is_over:
                ended.append((chat_id, answer.waiting[-1]))
                del self._answers[chat_id]
            answer.number += 1
            answer.waiting = []
        return ended

    def _write(self, batch: _Batch) -> bool:
        """Write, trying again for as long as Redis is away; False when told to stop meanwhile."""
        while batch:
            try:
                self._write_once(batch)
            except RedisError as error:
                _logger.warning("chat stream write failed, trying again: %s", error)
                if self._is_stopping:
                    return False
                time.sleep(_RETRY_S)
            else:
                break
        return True

    def _write_once(self, batch: _Batch) -> None:
        now_s = time.monotonic()
        due = [key for key in batch if now_s - self._refreshed_s.get(key, -1e9) > _REFRESH_S]
        with self._redis.pipeline(transaction=False) as pipe:
            for key, parts in batch.items():
                fields: dict[Any, Any] = dict(entry_fields(self._worker, parts))
                pipe.xadd(key, fields, maxlen=self._timing.stream_max_entries, approximate=True)
            for key in due:
                pipe.expire(key, self._timing.stream_ttl_s)
            pipe.execute()
        if due:
            self._refreshed_s = {
                key: then_s
                for key, then_s in (self._refreshed_s | dict.fromkeys(due, now_s)).items()
                if now_s - then_s <= self._timing.stream_ttl_s
            }
