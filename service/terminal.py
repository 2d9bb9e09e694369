"""What every command shares at the terminal: failures with a way out, tables, times and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import click

OptionValue = str | int | float | bool | Path | tuple[str, ...] | None
"""What click hands over for an option."""

_STATE_COLOURS = {
    "queued": "dim", "running": "cyan", "cancelling": "yellow", "succeeded": "green",
    "failed": "red", "dead": "red", "cancelled": "dim",
}  # fmt: skip
_DOES_NOT_FIT = {"out_of_memory", "does_not_fit"}
_REFUSED = {"refused_by_strict", "strict"}


class ExitCode(IntEnum):
    """How `lanewise` ends."""

    DONE = 0
    OTHER = 1
    USAGE = 2
    STRICT = 3
    DOES_NOT_FIT = 4


class CommandFailed(click.ClickException):
    """A command cannot go on: what happened, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.OTHER) -> None:
        """Keep the message, the way out and the exit code."""
        super().__init__(message)
        self.hint = hint
        self.exit_code = int(code)  # pyright: ignore[reportAttributeAccessIssue] - click reads it

    def show(self, file: IO[Any] | None = None) -> None:
        """Print to standard error."""
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(self.format_message(), err=True)
        if self.hint:
            click.echo(f"  → {self.hint}", err=True)


def exit_code_for(error_code: str | None, status: int = 0) -> ExitCode:
    """The exit code for an error code of the service."""
    if error_code in _DOES_NOT_FIT:
        return ExitCode.DOES_NOT_FIT
    if error_code in _REFUSED:
        return ExitCode.STRICT
    return ExitCode.USAGE if status in {400, 413, 415, 422} else ExitCode.OTHER


def clock(seconds: float | None) -> str:
    """75 is "1:15", 3700 is "1:01:40"."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size_text(count: float) -> str:
    """1536 is "1.5 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if count < 10 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def state_text(status: str) -> str:
    """A job's state with rich's colour marks."""
    style = _STATE_COLOURS.get(status, "default")
    return f"[{style}]{status}[/{style}]"


def progress_text(job: Mapping[str, Any]) -> str:
    """Stage, step and percent of a running job; its place or its error otherwise."""
    if job["status"] == "queued":
        ahead = job.get("queue_position")
        return f"{ahead} ahead" if ahead else "next"
    if job.get("error"):
        return str(job["error"]["message"])
    progress = job.get("progress")
    if job["status"] not in {"running", "cancelling"} or not progress:
        return ""
    eta = progress.get("eta_seconds")
    left = "" if eta is None else f", {clock(eta)} left"
    step = f" {progress['step']}/{progress['steps']}" if progress["steps"] else ""
    return f"{progress['stage']}{step}  {progress['percent']:.0f} %{left}"
