"""`lanewise video`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from service.commands.connection import Connection, connect
from service.commands.downloads import clip_of, save_artifact, sheet_of
from service.commands.options import clip_options, service_options
from service.commands.watching import wait_for_job
from service.terminal import CommandFailed, OptionValue, clock, size_text


@click.command()
@click.argument("image", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@clip_options
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default="motion.mp4",
    show_default=True, help="Where the clip goes; its contact sheet lands beside it.",
)  # fmt: skip
@click.option("--wait/--no-wait", default=True, help="Wait for the clip, or print the job's id.")
@service_options
def video(
    image: Path,
    output: Path,
    wait: bool,
    url: str | None,
    key: str | None,
    data: Path | None,
    **choices: OptionValue,
) -> None:
    """Turn the picture IMAGE into a clip. Ctrl-C cancels the job."""
    with connect(url, key, data) as connection:
        job = submit(connection, image, choices)
        if not wait:
            click.echo(job["id"])
            click.echo(f"Follow it with: lanewise jobs show {job['id']}", err=True)
            return
        done = wait_for_job(connection, job["id"], Console(stderr=True))
        _save(connection, done, output)


def submit(
    connection: Connection, image: Path, choices: Mapping[str, OptionValue]
) -> dict[str, Any]:
    """Upload the picture and queue the job; the job."""
    given = {name: value for name, value in choices.items() if value not in (None, ())}
    body = {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
    body["image"] = connection.upload(image.name, image.read_bytes())
    job: dict[str, Any] = connection.call("POST", "/jobs", json=body)
    return job


def _save(connection: Connection, job: dict[str, Any], output: Path) -> None:
    clip = clip_of(job)
    if clip is None:
        raise CommandFailed(f"Job {job['id']} succeeded, but has no clip.")
    save_artifact(connection, clip, output)
    request = job["request"]
    click.echo(
        f"{output}  {request['width']}x{request['height']}, {request['seconds']:g} s at "
        f"{request['fps']:g} fps, seed {request['seed']}, {size_text(clip['bytes'])}"
        f"{_took(job)}"
    )
    if sheet := sheet_of(job):
        path = output.with_name(f"{output.stem}_contact_sheet{Path(sheet['name']).suffix}")
        save_artifact(connection, sheet, path)
        click.echo(str(path))


def _took(job: dict[str, Any]) -> str:
    from datetime import datetime

    if not job["started_at"] or not job["finished_at"]:
        return ""
    start, end = (datetime.fromisoformat(job[name]) for name in ("started_at", "finished_at"))
    return f", took {clock((end - start).total_seconds())}"
