"""One poller per process sees what changed in the job store and tells every listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from starlette.concurrency import run_in_threadpool

from workers.errors import LanewiseError
from workers.protocol import Job
from workers.store import Store

_log = logging.getLogger("lanewise.service")
_PERIOD_S = 0.25
_IDLE_PERIOD_S = 1.0
_OVERLAP = timedelta(seconds=2)
_PAGE = 500


class Listener:
    """The changes that one reader has not had yet; a job that changes twice is kept once."""

    def __init__(self, key_id: str | None, job_id: str | None) -> None:
        """Take the filters: one tenant's jobs or all, one job or all."""
        self._key_id = key_id
        self._job_id = job_id
        self.is_over = False
        self._pending: dict[str, Job | None] = {}
        self._wake = asyncio.Event()

    def offer(self, job: Job) -> None:
        """Keep a change if it is wanted."""
        if self._key_id in (None, job.key_id) and self._job_id in (None, job.id):
            self._pending[job.id] = job
            self._wake.set()

    def offer_deleted(self, job_id: str, key_id: str) -> None:
        """Keep the news that a job of this key is gone."""
        if self._key_id in (None, key_id) and self._job_id in (None, job_id):
            self._pending[job_id] = None
            self._wake.set()

    def hang_up(self) -> None:
        """End the reading: `take` returns at once and `is_over` is set."""
        self.is_over = True
        self._wake.set()

    async def take(self, timeout_s: float) -> dict[str, Job | None]:
        """What changed since the last call, at most `timeout_s` later; None means deleted."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return {}
        self._wake.clear()
        taken, self._pending = self._pending, {}
        return taken


class JobEvents:
    """Polls `changed_since` at about 4 Hz while somebody listens, at 1 Hz otherwise."""

    def __init__(self, store: Store, *, observe: Callable[[Job], None]) -> None:
        """Take the store to poll and one observer that sees every change."""
        self._store = store
        self._observe = observe
        self._listeners: set[Listener] = set()
        self._seen: dict[str, datetime] = {}
        self._since = datetime.now(UTC)
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def start(self) -> None:
        """Begin to poll, on the running loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="job-events")

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def hang_up(self) -> None:
        """End all streams, so that a server that shuts down need not wait for them."""
        for listener in tuple(self._listeners):
            listener.hang_up()

    def listen(self, *, key_id: str | None, job_id: str | None = None) -> Listener:
        """A new listener; give it back with `leave`."""
        listener = Listener(key_id, job_id)
        self._listeners.add(listener)
        self._hurry.set()
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        self._listeners.discard(listener)

    def deleted(self, job: Job) -> None:
        """Tell those who may know that a job is gone."""
        for listener in tuple(self._listeners):
            listener.offer_deleted(job.id, job.key_id)

    async def _run(self) -> None:
        while True:
            try:
                await self.poll()
            except (LanewiseError, OSError) as error:
                _log.warning("cannot read what changed: %s", error)
            period_s = _PERIOD_S if self._listeners else _IDLE_PERIOD_S
            self._hurry.clear()
            try:
                async with asyncio.timeout(period_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    async def poll(self) -> None:
        """Read once and tell.

        A commit may become visible a little after the time it carries, so each read starts two
        seconds before the newest change seen, and what was told already is dropped.
        """
        changed = self._store.jobs.changed_since
        jobs = await run_in_threadpool(changed, self._since - _OVERLAP, _PAGE)
        for job in jobs:
            if self._seen.get(job.id) == job.changed_at:
                continue
            self._seen[job.id] = job.changed_at
            self._since = max(self._since, job.changed_at)
            self._observe(job)
            for listener in tuple(self._listeners):
                listener.offer(job)
        horizon = self._since - 2 * _OVERLAP
        self._seen = {id_: when for id_, when in self._seen.items() if when >= horizon}
