"""The two tasks: the one place where an engine meets the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workers.app import CHAT_TASK, RENDER_TASK

if TYPE_CHECKING:
    from celery import Celery


def register_chat(app: Celery, run: Callable[[str], None]) -> None:
    """Make `run` answer the chat requests of this app's queue; it gets the request's id."""

    def chat(chat_id: str) -> None:
        run(chat_id)

    app.task(name=CHAT_TASK, ignore_result=True)(chat)


def register_render(app: Celery, run: Callable[[str], None]) -> None:
    """Make `run` take the video jobs of this app's queue; it gets the job's id."""

    def render(job_id: str) -> None:
        run(job_id)

    app.task(name=RENDER_TASK, ignore_result=True)(render)
