"""Chat requests on a worker: from the broker into the engine, and their ends noted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from redis.exceptions import RedisError

from llm_engine.errors import LLMError
from workers.chat.publisher import ChatPublisher
from workers.chat.stream import ChatLetter, alive_key, cancel_key, request_key
from workers.chat.translation import EngineItem, Values, failure_of, to_engine
from workers.protocol import ChatFailed

if TYPE_CHECKING:
    from redis import Redis

    from llm_engine.types import GenerationRequest
    from workers.chat.stream import ChatTiming
    from workers.chat.stream_interval import StreamInterval
    from workers.chat.watcher import ChatWatcher

_logger = logging.getLogger(__name__)
_INTERNAL = ChatFailed(status=500, code="engine_error", message="the engine failed; see its log")
_CANCELLED = ChatFailed(
    status=503, code="cancelled", message="the answer was cancelled, since nobody seemed to read it"
)
_STOPPING = ChatFailed(
    status=503, code="worker_stopping", message="the worker stops; send the request again"
)


class RunningRequest(Protocol):
    """What a submitted request looks like from here."""

    def cancel(self) -> None:
        """Stop it; its listener hears None."""
        ...


class ChatEngine(Protocol):
    """The part of the engine's loop that a worker uses."""

    def submit(
        self, request: GenerationRequest, listener: Callable[[EngineItem | None], None]
    ) -> RunningRequest:
        """Take a request; raises LLMError when it cannot be taken.

        The listener hears every item in order, on the engine's thread, and None if cancelled.
        """
        ...


class ChatRunner:
    """Puts requests into the engine by id; `run` may be called from many threads, never raises.

    A running request holds no thread: the engine's thread hands its items to the publisher.
    Invariants: an answer that is still wanted always ends with `done` or `failed`.
    """

    def __init__(
        self,
        engine: ChatEngine,
        redis: Redis,
        watcher: ChatWatcher,
        *,
        on_busy: Callable[[bool], None],
        on_dead: Callable[[str], None],
    ) -> None:
        """`on_busy` hears when the first request comes and the last one ends."""
        self._engine = engine
        self._redis = redis
        self._watcher = watcher
        self._on_busy = on_busy
        self._on_dead = on_dead
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._is_draining = False
        self._publisher: ChatPublisher

    def start(self, worker: str, timing: ChatTiming, interval: StreamInterval) -> ChatPublisher:
        """Start the writer of this runner's answers, and return it for its end."""
        self._publisher = ChatPublisher(
            self._redis, worker, timing, interval, on_end=self._note_end
        )
        self._publisher.start()
        return self._publisher

    def run(self, chat_id: str) -> None:
        """Submit one request; a message whose request is gone or unwanted is dropped."""
        try:
            letter = self._take(chat_id)
        except RedisError as error:  # it lies there still: its gateway sends the message again
            _logger.warning("chat request %s cannot be taken: %s", chat_id, error)
            return
        if letter is None:
            return
        self._note_start(chat_id)
        self._publisher.open(chat_id, letter.reply_to)
        running = _Running()
        self._watcher.add(chat_id, running.cancel)
        try:
            request = to_engine(letter.request)
            running.bind(self._engine.submit(request, lambda item: self._hear(chat_id, item)))
        except LLMError as error:
            self._publisher.put(chat_id, failure_of(error))
        except Exception:
            _logger.exception("chat request %s broke", chat_id)
            self._publisher.put(chat_id, _INTERNAL)

    def drain(self) -> None:
        """Cancel what runs and tell its readers; for a worker that has to go."""
        self._is_draining = True
        self._watcher.cancel_all()

    def wait_idle(self) -> None:
        """Return when no request runs and every last event is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _hear(self, chat_id: str, item: EngineItem | None) -> None:
        if item is None:
            self._publisher.put(chat_id, _STOPPING if self._is_draining else _CANCELLED)
        else:
            self._publisher.put(chat_id, item)

    def _take(self, chat_id: str) -> ChatLetter | None:
        """Take the request out of the broker, so that a second message finds nothing."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.getdel(request_key(chat_id))
            pipe.exists(cancel_key(chat_id))
            pipe.exists(alive_key(chat_id))
            raw, is_cancelled, is_alive = cast("tuple[bytes | None, int, int]", pipe.execute())
        if raw is None or is_cancelled or not is_alive:
            _logger.info("chat request %s is no longer wanted", chat_id)
            return None
        return ChatLetter.model_validate_json(raw)

    def _note_start(self, chat_id: str) -> None:
        with self._changed:
            self._running.add(chat_id)
            if len(self._running) == 1:
                self._on_busy(True)

    def _note_end(self, chat_id: str, last: Values) -> None:
        self._watcher.remove(chat_id)
        with self._changed:
            self._running.discard(chat_id)
            if not self._running:
                self._on_busy(False)
                self._changed.notify_all()
        if last.get("code") == "engine_dead":
            self._on_dead(last["message"])


class _Running:
    """A request that may be cancelled before the engine has given its handle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._handle: RunningRequest | None = None

    def bind(self, handle: RunningRequest) -> None:
        """The engine has it."""
        with self._lock:
            self._handle = handle
            is_cancelled = self._is_cancelled
        if is_cancelled:
            handle.cancel()

    def cancel(self) -> None:
        """Stop it, now or as soon as the engine has it."""
        with self._lock:
            self._is_cancelled = True
            handle = self._handle
        if handle is not None:
            handle.cancel()
