"""`lanewise jobs …`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from service.commands.connection import Connection, connect
from service.commands.options import service_options
from service.terminal import OptionValue, progress_text, size_text, state_text

STATES = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled", "dead")
_PERIOD_S = 1.0
_WIDTHS = {"state": 9, "prompt": 14, "progress": 20}


class _ListByDefault(click.Group):
    """`lanewise jobs --status failed` means `lanewise jobs list --status failed`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_listing = not args or (args[0].startswith("-") and args[0] not in {"--help", "-h"})
        return super().parse_args(ctx, ["list", *args] if is_listing else args)


@click.group(cls=_ListByDefault)
def jobs() -> None:
    """List, watch, cancel, retry and delete jobs."""


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which jobs to show."""
    for option in (
        click.option("-n", "--limit", type=click.IntRange(1, 200), default=20, show_default=True,
                     help="How many."),
        click.option("--batch", metavar="ID", help="Only this batch."),
        click.option("--tag", metavar="WORD", help="Only this tag."),
        click.option("--project", metavar="NAME", help="Only this project."),
        click.option("--status", multiple=True, type=click.Choice(STATES), help="Repeatable."),
    ):  # fmt: skip
        command = option(command)
    return command


@jobs.command("list")
@filter_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@service_options
def list_jobs(
    as_json: bool, url: str | None, key: str | None, data: Path | None, **filters: OptionValue
) -> None:
    """List jobs, newest first."""
    with connect(url, key, data) as connection:
        page = _read(connection, filters)
    if as_json:
        click.echo(json.dumps(page["data"], indent=2))
    elif not page["data"]:
        click.echo("No job matches. Make one with: lanewise video PICTURE --prompt TEXT")
    else:
        Console().print(job_table(page["data"]))
        if page["has_more"]:
            click.echo(f"… and older ones; --limit shows more than {filters['limit']}.")


@jobs.command()
@filter_options
@service_options
def watch(url: str | None, key: str | None, data: Path | None, **filters: OptionValue) -> None:
    """Show the list and keep it up to date until Ctrl-C."""
    live = Live(console=Console(), auto_refresh=False)
    with connect(url, key, data) as connection, live:
        while True:
            live.update(job_table(_read(connection, filters)["data"]), refresh=True)
            time.sleep(_PERIOD_S)


@jobs.command()
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@service_options
def show(job_id: str, as_json: bool, url: str | None, key: str | None, data: Path | None) -> None:
    """Show everything about one job."""
    with connect(url, key, data) as connection:
        job = connection.call("GET", f"/jobs/{job_id}")
    if as_json:
        click.echo(json.dumps(job, indent=2))
        return
    console = Console()
    console.print(f"[bold]{escape(job['id'])}[/bold]  {state_text(job['status'])}")
    grid = Table.grid(padding=(0, 3))
    for name, value in _details(job):
        grid.add_row(f"[dim]{name}[/dim]", escape(str(value)))
    console.print(grid)


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID…")
@service_options
def cancel(job_ids: tuple[str, ...], url: str | None, key: str | None, data: Path | None) -> None:
    """Cancel jobs: waiting ones at once, running ones at their next step."""
    _act("cancel", job_ids, connect(url, key, data))


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID…")
@service_options
def retry(job_ids: tuple[str, ...], url: str | None, key: str | None, data: Path | None) -> None:
    """Queue failed, cancelled or dead jobs again, with the same seed."""
    _act("retry", job_ids, connect(url, key, data))


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID…")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@service_options
def delete(
    job_ids: tuple[str, ...], yes: bool, url: str | None, key: str | None, data: Path | None
) -> None:
    """Delete jobs and all their files. This cannot be undone."""
    if not yes:
        what = job_ids[0] if len(job_ids) == 1 else f"{len(job_ids)} jobs"
        click.confirm(f"Delete {what} and all files? This cannot be undone.", abort=True)
    with connect(url, key, data) as connection:
        for job_id in job_ids:
            connection.call("DELETE", f"/jobs/{job_id}")
            click.echo(f"{job_id}  deleted")


def job_table(rows: list[dict[str, Any]]) -> Table:
    """Jobs as a table; a column that nothing is in is left out."""
    named = [name for name in ("project", "shot") if any(job[name] for job in rows)]
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True, min_width=30)
    for name in ("state", *named, "prompt", "progress"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, min_width=_WIDTHS.get(name, 4))
    for job in rows:
        table.add_row(
            job["id"], state_text(job["status"]), *(escape(job[name]) for name in named),
            escape(job["request"]["prompt"]), escape(progress_text(job)),
        )  # fmt: skip
    return table


def _read(connection: Connection, filters: dict[str, OptionValue]) -> dict[str, Any]:
    query = {name: value for name, value in filters.items() if value not in (None, ())}
    page: dict[str, Any] = connection.call("GET", "/jobs", params=query)
    return page


def _act(verb: str, job_ids: tuple[str, ...], connection: Connection) -> None:
    with connection:
        for job_id in job_ids:
            job = connection.call("POST", f"/jobs/{job_id}/{verb}")
            click.echo(f"{job_id}  {job['status']}")


def _details(job: dict[str, Any]) -> list[tuple[str, Any]]:
    request = job["request"]
    rows = [(name, request[name]) for name in ("prompt", "negative_prompt", "model")]
    rows += [
        ("size", f"{request['width']} x {request['height']}, {request['fit']}"),
        ("length", f"{request['seconds']:g} s at {request['fps']:g} fps"),
    ]
    rows += [(name, request[name]) for name in ("seed", "steps", "guidance_scale")]
    rows += [(name, job[name]) for name in ("project", "shot", "batch_id", "attempt")]
    rows += [("tags", " ".join(job["tags"])), ("progress", progress_text(job))]
    rows += [(n.removesuffix("_at"), job[n]) for n in ("created_at", "started_at", "finished_at")]
    rows += [("file", f"{a['name']}  {size_text(a['bytes'])}  sha256 {a['sha256'][:16]}…")
             for a in job["artifacts"]]  # fmt: skip
    return [(name, value) for name, value in rows if value not in (None, "")]
