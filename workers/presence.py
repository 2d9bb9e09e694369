"""A worker's row in the directory: published at start, on change and on every beat."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from workers.protocol import WorkerFacts
    from workers.store.clock import Clock

_logger = logging.getLogger(__name__)
BEAT_S = 5.0
GONE_AFTER_S = 20.0
_MIN_GAP_S = 0.5


class Directory(Protocol):
    """The part of the worker directory that a worker writes."""

    def publish(self, facts: WorkerFacts) -> None:
        """Write or replace the row."""
        ...

    def forget(self, worker_id: str) -> None:
        """Remove the row."""
        ...


def worker_id(role: str, pid: int | None = None) -> str:
    """The id of a worker process on this host."""
    return f"{role}-{socket.gethostname()}-{pid or os.getpid()}"


class Presence:
    """Publishes facts every `BEAT_S`, and soon after each `update`.

    A directory that cannot be written is logged and tried again; it never hurts the work.
    """

    def __init__(self, directory: Directory, facts: WorkerFacts, clock: Clock) -> None:
        """Publish `facts`, with the time of `clock` as beat."""
        self._directory = directory
        self._facts = facts
        self._clock = clock
        self._read: Callable[[], dict[str, Any]] = dict[str, Any]
        self._is_dirty = True
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    @property
    def facts(self) -> WorkerFacts:
        """The facts as last set."""
        return self._facts

    def start(self) -> None:
        """Publish now and begin to beat."""
        self._publish()
        self._thread.start()

    def watch(self, read: Callable[[], dict[str, Any]]) -> None:
        """Publish the fields that `read` returns with every beat; this object's thread calls it."""
        self._read = read

    def update(self, **changes: Any) -> None:  # noqa: ANN401 - fields of WorkerFacts
        """Change facts; they are published within half a second."""
        with self._changed:
            facts = self._facts.model_copy(update=changes)
            if facts == self._facts:
                return
            self._facts = facts
            self._is_dirty = True
            self._changed.notify()

    def leave(self) -> None:
        """Remove the row; no beat follows."""
        self._end()
        try:
            self._directory.forget(self._facts.id)
        except SQLAlchemyError as error:
            _logger.warning("cannot remove the worker's row: %s", error)

    def fail(self, reason: str, **changes: Any) -> None:  # noqa: ANN401 - fields of WorkerFacts
        """Publish a last time, with the reason; the row stays until it is stale."""
        self._end()
        self._facts = self._facts.model_copy(update={"error": reason, **changes})
        self._publish()

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        beaten_s = time.monotonic()
        while True:
            with self._changed:
                while not self._is_over:
                    gap_s = _MIN_GAP_S if self._is_dirty else BEAT_S
                    wait_s = beaten_s + gap_s - time.monotonic()
                    if wait_s <= 0:
                        break
                    self._changed.wait(wait_s)
                if self._is_over:
                    return
            beaten_s = time.monotonic()
            self._publish()

    def _publish(self) -> None:
        with self._changed:
            self._is_dirty = False
            facts = self._facts.model_copy(update={"beat_at": self._clock(), **self._read()})
        try:
            self._directory.publish(facts)
        except SQLAlchemyError as error:
            _logger.warning("cannot publish the worker's facts: %s", error)
