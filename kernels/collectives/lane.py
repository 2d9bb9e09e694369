"""One queue of operations for a communicator: what is issued first runs first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Handle(Generic[T]):
    """An operation under way. Its buffers belong to it until `wait` returns."""

    def __init__(self, operation: Callable[[], T]) -> None:
        self._operation = operation
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Carry the operation out; the lane's thread does."""
        try:
            self._result = self._operation()
        except BaseException as error:  # noqa: BLE001 - raised again by wait, in its caller
            self._error = error
        finally:
            self._done.set()

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._done.is_set()

    def wait(self) -> T:
        """The result.

        Raises: what the operation raised. Every operation ends within its group's time limit.
        """
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set whenever there is no error


class Lane:
    """A thread that runs operations in order, started with the first that nobody waits for.

    Until then operations run in the caller's thread, which costs nothing.
    """

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        """`prepare` is called once in the lane's own thread, for what belongs to a thread."""
        self._name, self._prepare = name, prepare
        self._queue: queue.SimpleQueue[Handle[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()

    def start(self, operation: Callable[[], T]) -> Handle[T]:
        """Put the operation behind those already issued."""
        handle = Handle(operation)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._queue.put(handle)
        return handle

    def run(self, operation: Callable[[], T]) -> T:
        """Carry the operation out in its turn and return its result."""
        if threading.current_thread() is self._thread:
            return operation()
        with self._lock:
            if self._thread is None:
                return operation()
        return self.start(operation).wait()

    def close(self) -> None:
        """Finish what was issued and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _work(self) -> None:
        self._prepare()
        while (handle := self._queue.get()) is not None:
            handle.run()
