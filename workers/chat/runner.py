"""One chat request on a worker: from the broker into the engine, and its events back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from llm_engine.errors import (
    ContextLengthExceeded,
    EngineDead,
    InvalidRequest,
    LLMError,
    QueueFull,
)
from llm_engine.types import (
    ChatMessage,
    Finished,
    GenerationRequest,
    SamplingParams,
    TextDelta,
)
from llm_engine.types import TokenLogprob as EngineLogprob
from workers.chat.stream import alive_key, cancel_key, request_key
from workers.protocol import ChatDelta, ChatDone, ChatEvent, ChatFailed, ChatRequest, TokenLogprob

if TYPE_CHECKING:
    from redis import Redis

    from workers.chat.publisher import ChatPublisher
    from workers.chat.watcher import ChatWatcher

_logger = logging.getLogger(__name__)


class RunningRequest(Protocol):
    """What a submitted request looks like from here."""

    def events(self) -> Iterator[TextDelta | Finished]:
        """The events, in order; raises LLMError when the request broke."""
        ...

    def cancel(self) -> None:
        """Stop it; its events end."""
        ...


class ChatEngine(Protocol):
    """The part of the engine's loop that a worker uses."""

    def submit(self, request: GenerationRequest) -> RunningRequest:
        """Take a request; raises LLMError when it cannot be taken."""
        ...


class ChatRunner:
    """Runs requests by id; `run` is called from many threads and never raises.

    Invariants: an answer that is still wanted always ends with `done` or `failed`.
    """

    def __init__(
        self,
        engine: ChatEngine,
        redis: Redis,
        publisher: ChatPublisher,
        watcher: ChatWatcher,
        *,
        on_load: Callable[[int], None],
        on_dead: Callable[[str], None],
    ) -> None:
        """`on_load` hears the number of running requests, `on_dead` why the engine ended."""
        self._engine = engine
        self._redis = redis
        self._publisher = publisher
        self._watcher = watcher
        self._on_load = on_load
        self._on_dead = on_dead
        self._lock = threading.Lock()
        self._num_running = 0
        self._is_draining = False

    def run(self, chat_id: str) -> None:
        """Answer one request; a message whose request is gone or unwanted is dropped."""
        request = self._take(chat_id)
        if request is None:
            return
        self._publisher.open(chat_id)
        self._count(1)
        try:
            self._pump(request)
        except LLMError as error:
            self._publisher.put(chat_id, failure_of(error))
            if isinstance(error, EngineDead):
                self._on_dead(str(error))
        except Exception:
            _logger.exception("chat request %s broke", chat_id)
            self._publisher.put(chat_id, _INTERNAL)
        finally:
            self._watcher.remove(chat_id)
            self._count(-1)

    def drain(self) -> None:
        """Cancel what runs and tell its readers; for a worker that has to go."""
        self._is_draining = True
        self._watcher.cancel_all()

    def _take(self, chat_id: str) -> ChatRequest | None:
        """Take the request out of the broker, so that a second message finds nothing."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.getdel(request_key(chat_id))
            pipe.exists(cancel_key(chat_id))
            pipe.exists(alive_key(chat_id))
            raw, is_cancelled, is_alive = cast("tuple[bytes | None, int, int]", pipe.execute())
        if raw is None or is_cancelled or not is_alive:
            _logger.info("chat request %s is no longer wanted", chat_id)
            return None
        return ChatRequest.model_validate_json(raw)

    def _pump(self, request: ChatRequest) -> None:
        running = self._engine.submit(to_engine(request))
        self._watcher.add(request.id, running.cancel)
        for event in running.events():
            self._publisher.put(request.id, to_wire(event))
        # After `done` these change nothing; a cancelled answer ends here.
        self._publisher.put(request.id, _STOPPING if self._is_draining else _CANCELLED)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_running += change
            self._on_load(self._num_running)


_INTERNAL = ChatFailed(status=500, code="engine_error", message="the engine failed; see its log")
_CANCELLED = ChatFailed(
    status=503, code="cancelled", message="the answer was cancelled, since nobody seemed to read it"
)
_STOPPING = ChatFailed(
    status=503, code="worker_stopping", message="the worker stops; send the request again"
)


def to_engine(request: ChatRequest) -> GenerationRequest:
    """The engine's form of a request.

    Raises: InvalidRequest when a value is out of the engine's bounds.
    """
    params = request.params.model_dump()
    return GenerationRequest(
        request_id=request.id,
        messages=tuple(ChatMessage(m.role, m.content, m.name) for m in request.messages),
        prompt_token_ids=None,
        params=SamplingParams(**params),
    )


def to_wire(event: TextDelta | Finished) -> ChatEvent:
    """The wire form of an engine event."""
    if isinstance(event, Finished):
        return ChatDone(
            prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens,
            cached_tokens=event.cached_tokens,
        )
    return ChatDelta(
        index=event.index,
        text=event.text,
        num_tokens=len(event.token_ids),
        logprobs=None if event.logprobs is None else tuple(map(_logprob, event.logprobs)),
        finish_reason=event.finish_reason,
    )


def failure_of(error: LLMError) -> ChatFailed:
    """The HTTP status and code that an engine's error deserves."""
    if isinstance(error, ContextLengthExceeded):
        status, code = 400, "context_length_exceeded"
    elif isinstance(error, InvalidRequest):
        status, code = 400, None
    elif isinstance(error, QueueFull):
        status, code = 429, "queue_full"
    elif isinstance(error, EngineDead):
        status, code = 503, "engine_dead"
    else:
        status, code = 500, "engine_error"
    param = error.param if isinstance(error, InvalidRequest) else None
    return ChatFailed(status=status, code=code, message=str(error), param=param)


def _logprob(entry: EngineLogprob) -> TokenLogprob:
    return TokenLogprob(
        token=entry.token,
        logprob=entry.logprob,
        bytes=entry.bytes,
        top=tuple(map(_logprob, entry.top)),
    )
