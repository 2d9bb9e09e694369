"""One look-up for all who ask the same at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SharedLookup(Generic[Key, Value]):
    """Callers that come while a look-up of their key is under way share it, and its error.

    Without it a burst of requests asks the database once each. Nothing is kept afterwards.
    """

    def __init__(self) -> None:
        """Nothing is under way."""
        self._tasks: dict[Key, asyncio.Task[Value]] = {}

    async def get(self, key: Key, look_up: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """What `look_up` returns or raises; a caller who is cancelled leaves it to the others."""
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(look_up())
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return await asyncio.shield(task)
