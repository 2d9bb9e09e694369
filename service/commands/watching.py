"""Waiting for jobs, with a bar."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from service.commands.connection import Connection
from service.terminal import CommandFailed, ExitCode, exit_code_for, progress_text

TERMINAL = {"succeeded", "failed", "cancelled", "dead"}
_PERIOD_S = 0.4


class Interrupted(CommandFailed):
    """The person at the terminal stopped the command."""


def poll_job(connection: Connection, job_id: str) -> Iterator[dict[str, Any]]:
    """The job now and again until it has ended."""
    while True:
        job = connection.call("GET", f"/jobs/{job_id}")
        yield job
        if job["status"] in TERMINAL:
            return
        time.sleep(_PERIOD_S)


def job_bar(console: Console) -> Progress:
    """A bar for one job: what it does, how far it is, for how long."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=36),
        TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip


def show_job(progress: Progress, task: TaskID, job: dict[str, Any]) -> None:
    """Move the bar to where the job is."""
    percent = float(job["progress"]["percent"]) if job["progress"] else 0.0
    if job["status"] == "queued":
        text = f"waiting ({progress_text(job)})"
    else:
        text = progress_text(job).split("  ")[0] or job["status"]
    done = 100.0 if job["status"] == "succeeded" else percent
    progress.update(task, description=f"{text:<24}", completed=done)


def wait_for_job(connection: Connection, job_id: str, console: Console) -> dict[str, Any]:
    """Show a bar until the job has succeeded. Ctrl-C cancels the job.

    Raises: CommandFailed when the job ends in another way.
    """
    job: dict[str, Any] = {}
    try:
        with job_bar(console) as progress:
            task = progress.add_task("waiting", total=100)
            for job in poll_job(connection, job_id):
                show_job(progress, task, job)
    except KeyboardInterrupt:
        connection.call("POST", f"/jobs/{job_id}/cancel")
        raise Interrupted(
            f"Interrupted; job {job_id} is cancelled.", hint=f"lanewise jobs retry {job_id}"
        ) from None
    if job["status"] != "succeeded":
        raise failure_of(job)
    return job


def failure_of(job: dict[str, Any]) -> CommandFailed:
    """Why a job did not succeed, as an error of the command."""
    error = job.get("error") or {"code": None, "message": "no reason was given"}
    if job["status"] == "cancelled":
        return CommandFailed(f"Job {job['id']} was cancelled.")
    code = exit_code_for(error["code"])
    hint = f"lanewise jobs retry {job['id']}"
    if code is ExitCode.DOES_NOT_FIT:
        hint = "use a smaller --size or fewer --seconds"
    message = f"Job {job['id']} {job['status']}: {error['message']}"
    return CommandFailed(message, hint=hint, code=code)
