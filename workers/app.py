"""The Celery application: one factory, every binding setting, queue and task names."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from celery import Celery
from kombu import Exchange, Queue

from workers.settings import celery_broker_url

if TYPE_CHECKING:
    from workers.settings import Settings

CHAT_TASK = "lanewise.chat"
RENDER_TASK = "lanewise.render"
Role = Literal["llm", "video"]

TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,
    "socket_timeout": 30,
    "socket_keepalive": True,
    "health_check_interval": 25,
    "queue_order_strategy": "priority",
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
}


def make_app(settings: Settings, redis_url: str) -> Celery:
    """A Celery app for these settings; messages carry an id and nothing else.

    Tasks are acknowledged when taken: the lease in the job store does the recovery, so a late
    acknowledgement could only add duplicate runs.
    """
    app = Celery("lanewise", broker=celery_broker_url(redis_url), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        task_acks_late=False,
        task_ignore_result=True,
        task_create_missing_queues=False,
        task_queues=[*_queues(settings)],
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.2},
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_pool="threads",
        worker_soft_shutdown_timeout=30,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A Redis that refuses to write, as on a full disk, is waited for and ends no worker.
        broker_channel_error_retry=True,
        broker_connection_timeout=5,
        broker_transport_options=TRANSPORT_OPTIONS,
    )
    return app


def served_name(model: str) -> str:
    """The name clients use: the last part of a local path, any other name as it stands."""
    return Path(model).name if Path(model).expanduser().exists() else model


def queue_name(role: Role, model: str) -> str:
    """`llm.<slug>` or `video.<slug>`; names that a slug cannot hold get a short hash."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-")
    if slug != model:
        slug = f"{slug}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
    return f"{role}.{slug}"


def queue_of(role: Role, model: str) -> Queue:
    """The queue that the workers of one model read.

    A chat's message is not acknowledged, which halves what it costs a worker: the gateway looks
    after its requests, and sends the message of one that nobody took once more.
    """
    name = queue_name(role, model)
    exchange = Exchange(name, type="direct")
    return Queue(name, exchange, routing_key=name, no_ack=role == "llm")


def send(app: Celery, role: Role, model: str, item_id: str) -> None:
    """Put one id on the model's queue.

    Raises: kombu.exceptions.OperationalError when the broker cannot be reached.
    """
    task = CHAT_TASK if role == "llm" else RENDER_TASK
    app.send_task(task, args=(item_id,), queue=queue_of(role, model), ignore_result=True)


def _queues(settings: Settings) -> list[Queue]:
    served: list[tuple[Role, str]] = [
        ("llm", settings.llm_model),
        ("video", settings.video_model),
    ]
    return [queue_of(role, served_name(model)) for role, model in served if model != "none"]
