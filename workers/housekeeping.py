"""What has to happen by itself: lost workers, lost messages, webhooks, and what expires."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from workers.store.clock import utc_now
from workers.webhooks.sender import WebhookSender, webhook_secret

if TYPE_CHECKING:
    from workers.client import Client
    from workers.protocol import Job

_logger = logging.getLogger(__name__)
_WEBHOOK_EVERY_S = 1.0
_EXPIRE_EVERY_S = 600.0
_DELETED_FOR_S = 3_600.0
_IDEMPOTENCY_FOR_S = 86_400.0


class Housekeeper:
    """Three loops on one thread of their own, for as long as the gateway lives.

    Several gateways may run one each: every action is safe to do twice. Trouble with the
    database or Redis is logged, and the loop goes on.
    """

    def __init__(self, client: Client, *, sender: WebhookSender | None = None) -> None:
        """Keep house for `client`; `start` begins."""
        settings = client.settings
        self._client = client
        self._settings = settings
        self._sender = sender or WebhookSender(
            client.store.webhooks,
            webhook_secret(settings.webhook_secret, settings.resolved_data_dir),
            allow_private=settings.webhook_private_hosts,
            clock=utc_now,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)

    def start(self) -> None:
        """Begin: every queued job without a message gets one now, since Redis may be fresh."""
        self._thread.start()
        self._ready.wait()

    def stop(self, timeout_s: float = 20.0) -> None:
        """End the loops; a webhook on its way may finish."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout_s)

    # ------------------------------------------------------------ the chores

    def reap(self) -> None:
        """Take jobs from lost workers and send those that go back to the queue."""
        reaped = self._client.store.jobs.reap(max_crashes=self._settings.max_crashes)
        for job in reaped.dead:
            _logger.error("job %s is dead: %s", job.id, job.error and job.error.message)
        for job in reaped.requeued:
            _logger.warning("job %s lost its worker and is queued again", job.id)
            self._client.send_job(job)

    def resend(self, older_than_s: float) -> None:
        """Send queued jobs again for which no message waits.

        A message is a ticket for the best job, not for its own: only as many are sent as there
        are jobs more than messages, so a long queue does not grow with time.
        """
        by_model: dict[str, list[Job]] = defaultdict(list)
        for job in self._client.store.jobs.queued_older_than(older_than_s):
            by_model[job.request.model].append(job)
        for model, jobs in by_model.items():
            num_missing = len(jobs) - self._client.messages("video", model)
            for job in jobs[: max(num_missing, 0)]:
                self._client.send_job(job)

    def expire(self) -> None:
        """Remove what has had its time."""
        jobs = self._client.store.jobs
        self._client.artifacts.delete(jobs.purge(_DELETED_FOR_S))
        jobs.forget_idempotency_keys(_IDEMPOTENCY_FOR_S)

    # ------------------------------------------------------------ the loops

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._safely(self._in_thread(lambda: self.resend(0)))
        await asyncio.gather(
            self._every(self._settings.lease_s / 3, self._in_thread(self._reap_and_resend)),
            self._every(_WEBHOOK_EVERY_S, self._sender.send_due),
            self._every(_EXPIRE_EVERY_S, self._in_thread(self.expire)),
        )

    def _reap_and_resend(self) -> None:
        self.reap()
        self.resend(self._settings.resend_after_s)

    async def _every(self, period_s: float, chore: Callable[[], Awaitable[object]]) -> None:
        assert self._stopping is not None
        while not self._stopping.is_set():
            await self._safely(chore)
            try:
                await asyncio.wait_for(self._stopping.wait(), period_s)
            except TimeoutError:
                continue

    async def _safely(self, chore: Callable[[], Awaitable[object]]) -> None:
        try:
            await chore()
        except (SQLAlchemyError, RedisError, OSError) as error:
            _logger.warning("housekeeping failed, trying again later: %s", error)

    def _in_thread(self, chore: Callable[[], None]) -> Callable[[], Awaitable[object]]:
        return lambda: asyncio.to_thread(chore)
