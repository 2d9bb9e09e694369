"""Notices that an answer is no longer wanted: one thread for all running requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from workers.chat.stream import alive_key, cancel_key
from workers.thread_names import name_this_thread

if TYPE_CHECKING:
    from redis import Redis

    from workers.chat.stream import ChatTiming

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    cancel: Callable[[], None]
    missing_since_s: float | None = None


class ChatWatcher:
    """Polls the cancel and alive keys of all running requests with one round trip.

    A request is cancelled when its cancel key exists, or when its alive key has been missing for
    `alive_grace_s` (a broker that lost its memory gets the key back within that time).
    """

    def __init__(self, redis: Redis, timing: ChatTiming) -> None:
        """Poll `redis`; `start` begins."""
        self._redis = redis
        self._timing = timing
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chat-watcher", daemon=True)

    def start(self) -> None:
        """Begin polling."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def add(self, chat_id: str, cancel: Callable[[], None]) -> None:
        """Call `cancel`, once, when the request is no longer wanted."""
        with self._lock:
            self._watched[chat_id] = _Watched(cancel)

    def remove(self, chat_id: str) -> None:
        """The request is over."""
        with self._lock:
            self._watched.pop(chat_id, None)

    def cancel_all(self) -> None:
        """Cancel whatever runs; for a worker that has to go."""
        with self._lock:
            watched, self._watched = self._watched, {}
        for entry in watched.values():
            entry.cancel()

    def _run(self) -> None:
        name_this_thread(self._thread.name)
        while not self._stopping.wait(self._timing.watch_s):
            with self._lock:
                chat_ids = list(self._watched)
            if not chat_ids:
                continue
            try:
                self._look(chat_ids)
            except RedisError as error:
                _logger.warning("cannot look for cancelled chats: %s", error)

    def _look(self, chat_ids: list[str]) -> None:
        keys = [cancel_key(i) for i in chat_ids] + [alive_key(i) for i in chat_ids]
        values = self._redis.mget(keys)
        now_s = time.monotonic()
        for position, chat_id in enumerate(chat_ids):
            is_cancelled = values[position] is not None
            is_alive = values[len(chat_ids) + position] is not None
            if is_cancelled or self._has_vanished(chat_id, is_alive, now_s):
                self._cancel(chat_id)

    def _has_vanished(self, chat_id: str, is_alive: bool, now_s: float) -> bool:
        with self._lock:
            entry = self._watched.get(chat_id)
            if entry is None:
                return False
            if is_alive:
                entry.missing_since_s = None
                return False
            if entry.missing_since_s is None:
                entry.missing_since_s = now_s
            return now_s - entry.missing_since_s >= self._timing.alive_grace_s

    def _cancel(self, chat_id: str) -> None:
        with self._lock:
            entry = self._watched.pop(chat_id, None)
        if entry is not None:
            entry.cancel()
