"""A resident language engine at the queue: many requests at once, none of which holds a thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from redis import Redis

from workers.chat.runner import ChatEngine, ChatRunner
from workers.chat.watcher import ChatWatcher
from workers.drain import ANSWER_LIMIT_S
from workers.processes.tasks import register_chat
from workers.processes.worker_process import Consumer
from workers.protocol import WorkerState

if TYPE_CHECKING:
    from workers.chat.stream import ChatTiming
    from workers.chat.stream_interval import StreamInterval
    from workers.processes.worker_process import WorkerParts

_logger = logging.getLogger(__name__)
DRAIN_LIMIT_S = 25.0
_SOCKET_TIMEOUT_S = 30.0
# A task only tokenises and submits. Celery hands out no more than this many at once and looks
# again only a tenth of a second later, so a burst must fit; threads are made when needed.
_NUM_SUBMITTERS = 256


def serve_engine(
    parts: WorkerParts,
    engine: ChatEngine,
    timing: ChatTiming,
    interval: StreamInterval,
    *,
    close_engine: Callable[[], None] = lambda: None,
) -> Consumer:
    """Register the chat task for a resident engine.

    A worker that drains lets its chats run for `ANSWER_LIMIT_S`, then ends them with an error;
    one whose engine died ends with exit code 1.
    """
    redis = Redis.from_url(parts.settings.redis_url, socket_timeout=_SOCKET_TIMEOUT_S)
    watcher = ChatWatcher(redis, timing)
    died = threading.Event()

    def on_busy(is_busy: bool) -> None:
        parts.presence.update(state=WorkerState.BUSY if is_busy else WorkerState.IDLE)

    def on_dead(reason: str) -> None:
        if not parts.drain.is_on and not died.is_set():
            died.set()
            _logger.error("the engine is dead, so this worker ends: %s", reason)
            os.kill(os.getpid(), signal.SIGTERM)

    def leave_now() -> None:
        parts.presence.leave()
        os._exit(int(died.is_set()))

    def close() -> None:
        runner.wait_idle()
        close_engine()
        watcher.stop()
        publisher.stop()
        redis.close()

    runner = ChatRunner(engine, redis, watcher, on_busy=on_busy, on_dead=on_dead)
    publisher = runner.start(parts.worker, timing, interval)
    watcher.start()
    parts.drain.after(ANSWER_LIMIT_S, runner.drain)
    parts.drain.after(DRAIN_LIMIT_S, leave_now)
    register_chat(parts.app, runner.run)
    return Consumer(
        concurrency=_NUM_SUBMITTERS,
        close=close,
        exit_code=lambda: int(died.is_set()),
    )
