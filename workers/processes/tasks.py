"""The two tasks: the one place where an engine meets the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery.worker.request import Request

from workers.app import CHAT_TASK, RENDER_TASK

if TYPE_CHECKING:
    from celery import Celery


class _UnacknowledgedRequest(Request):
    """A message of a queue without acknowledgements, which kombu would acknowledge all the same."""

    def acknowledge(self) -> None:
        """Nothing is to be removed: the broker forgot the message when it gave it out."""
        self.acknowledged = True


def register_chat(app: Celery, run: Callable[[str], None]) -> None:
    """Make `run` answer the chat requests of this app's queue; it gets the request's id."""

    def chat(chat_id: str) -> None:
        run(chat_id)

    app.task(name=CHAT_TASK, ignore_result=True, Request=_UnacknowledgedRequest)(chat)


def register_render(app: Celery, run: Callable[[str], None]) -> None:
    """Make `run` take the video jobs of this app's queue; it gets the job's id."""

    def render(job_id: str) -> None:
        run(job_id)

    app.task(name=RENDER_TASK, ignore_result=True)(render)
