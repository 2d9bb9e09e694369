"""One task that sleeps until a plain call wakes it."""

from __future__ import annotations

import asyncio


class Waker:
    """For the loop it is made on; a call while nobody sleeps is forgotten."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[None] | None = None

    async def sleep(self) -> None:
        """Return at the next `wake`; one task at a time."""
        self._sleeper = self._loop.create_future()
        try:
            await self._sleeper
        finally:
            self._sleeper = None

    def wake(self) -> None:
        """Wake the sleeper, if there is one."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)
