"""Client: everything the gateway asks of the job layer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from workers.app import make_app, queue_name, send, served_name
from workers.batch_intake import BatchCreated, BatchItem, create_batch
from workers.chat.client import ChatClient, says_full
from workers.chat.stream import ChatTiming
from workers.errors import NoWorker, StorageFull
from workers.presence import GONE_AFTER_S
from workers.protocol import ChatEvent, ChatRequest, WorkerFacts
from workers.store import ArtifactStore, Store, open_store

if TYPE_CHECKING:
    from celery import Celery

    from workers.protocol import Job, JobLabels, VideoJobRequest
    from workers.settings import Settings
    from workers.store.values import Created, Idempotency

__all__ = ["BatchCreated", "BatchItem", "Client", "NoWorker", "served_name"]
_logger = logging.getLogger(__name__)
_PING_TIMEOUT_S = 2.0
_ROOM_KEY = "room"  # written to see whether Redis writes


class Client:
    """Jobs and chats, seen from the gateway.

    Everything but `run_chat` and `aclose` may block for some milliseconds: call it in a thread.
    A job's row is written before its message; a message that cannot be sent is sent later by the
    housekeeper, so a submit never fails for want of a broker.
    """

    def __init__(self, settings: Settings, store: Store, app: Celery, timing: ChatTiming) -> None:
        """Take the parts; `connect` makes them."""
        self.settings = settings
        self.store = store
        self._app = app
        self._timing = timing
        self._redis = Redis.from_url(
            settings.redis_url, socket_timeout=_PING_TIMEOUT_S, socket_connect_timeout=1.0
        )
        self._chats: ChatClient | None = None
        self._room_lock = threading.Lock()
        self._had_room_s = -1e9

    @classmethod
    def connect(cls, settings: Settings, *, timing: ChatTiming | None = None) -> Self:
        """Open the store and prepare the connections; Redis is first used when needed.

        Raises: StoreUnusable when the database cannot be opened.
        """
        store = open_store(settings.resolved_database_url, settings.resolved_artifact_url)
        return cls(settings, store, make_app(settings, settings.redis_url), timing or ChatTiming())

    @property
    def artifacts(self) -> ArtifactStore:
        """The files of jobs and uploads."""
        return self.store.artifacts

    def close(self) -> None:
        """Close what belongs to no event loop; `aclose` closes all."""
        self._redis.close()
        self._app.close()
        self.store.close()

    async def aclose(self) -> None:
        """End the chat reader and close everything."""
        if self._chats is not None:
            await self._chats.close()
            self._chats = None
        await asyncio.to_thread(self.close)

    # ------------------------------------------------------------ jobs

    def submit_video(
        self,
        request: VideoJobRequest,
        labels: JobLabels,
        *,
        key_id: str,
        idempotency: Idempotency | None = None,
    ) -> Created:
        """Queue a job; with a known idempotency key, the job that is already there.

        Raises: QueueFull, IdempotencyMismatch.
        """
        created = self.store.jobs.create(
            request,
            labels,
            key_id=key_id,
            idempotency=idempotency,
            max_queued=self.settings.max_queued,
        )
        if not created.replayed:
            self.send_job(created.job)
        return created

    def submit_batch(self, name: str, items: Sequence[BatchItem], *, key_id: str) -> BatchCreated:
        """Queue the shots of a list that are new, changed or failed; see `create_batch`.

        Raises: QueueFull, InvalidText.
        """
        created = create_batch(
            self.store,
            name,
            items,
            key_id=key_id,
            max_queued=self.settings.max_queued,
        )
        for job in created.fresh:
            if not self.send_job(job):
                break
        return created

    def cancel(self, job_id: str, key_id: str | None) -> Job:
        """Stop a job: a queued one at once, a running one at its next border.

        Raises: JobNotFound.
        """
        return self.store.jobs.request_cancel(job_id, key_id)

    def retry(self, job_id: str, key_id: str | None) -> Job:
        """Queue a failed, cancelled or dead job again.

        Raises: JobNotFound, JobNotRetryable.
        """
        job = self.store.jobs.retry(job_id, key_id)
        self.send_job(job)
        return job

    def delete(self, job_id: str, key_id: str | None) -> None:
        """Remove a job and its files; a running one is stopped first.

        Raises: JobNotFound.
        """
        self.artifacts.delete(self.store.jobs.delete(job_id, key_id))

    def send_job(self, job: Job) -> bool:
        """Send a queued job's message; False when the broker cannot be reached."""
        try:
            send(self._app, "video", job.request.model, job.id)
        except (OperationalError, RedisError, OSError) as error:
            _logger.warning("job %s is queued, its message is sent later: %s", job.id, error)
            return False
        return True

    # ------------------------------------------------------------ chat

    async def run_chat(
        self, request: ChatRequest, deliver: Callable[[Sequence[ChatEvent]], None]
    ) -> None:
        """Have a request answered; `deliver` hears its events, the last of them `done` or `failed`.

        Cancelling the call cancels the request. All calls must come from one event loop, where
        `deliver` is called; it must not raise.
        Raises: NoWorker before the first event when no living worker serves the model; StorageFull
        when its worker cannot be heard for want of room; QueueFull.
        """
        if self._chats is None:
            self._chats = self._make_chats()
        await self._chats.run(request, deliver)

    def _make_chats(self) -> ChatClient:
        return ChatClient(
            self.settings.redis_url,
            self.workers,
            self._timing,
            check_room=self.check_room,
            max_waiting=self.settings.max_queued,
        )

    # ------------------------------------------------------------ health

    def workers(self) -> list[WorkerFacts]:
        """The workers heard of within the last `GONE_AFTER_S`."""
        return self.store.workers.list(max_age_s=GONE_AFTER_S)

    def check_room(self) -> None:
        """Write what a worker must be able to write, to the database and to Redis.

        At most once a second while there is room, however many ask.
        Raises: StorageFull when one of them has none.
        """
        with self._room_lock:
            if time.monotonic() - self._had_room_s < 1.0:
                return
            self.store.workers.check_room()
            try:
                self._redis.set(_ROOM_KEY, "1", ex=1)
            except RedisError as error:
                if says_full(error):
                    raise StorageFull from error
                _logger.warning("cannot tell whether Redis has room: %s", error)
            self._had_room_s = time.monotonic()

    def redis_ok(self) -> bool:
        """Whether Redis answers."""
        try:
            return bool(self._redis.ping())
        except RedisError:
            return False

    def database_ok(self) -> bool:
        """Whether the database answers."""
        try:
            self.store.ping()
        except SQLAlchemyError:
            return False
        return True

    def messages(self, role: str, model: str) -> int:
        """How many messages wait for the workers of a model.

        Raises: RedisError when the broker cannot be asked.
        """
        return int(self._redis.llen(queue_name("video" if role == "video" else "llm", model)))  # type: ignore[arg-type]
