"""`lanewise render`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from service.batch.shots import ShotRow
from service.commands.batch_results import save_results
from service.commands.batch_watch import watch_batch
from service.commands.connection import Connection, ServiceRefused, connect
from service.commands.options import service_options
from service.commands.shot_list import by_line_of_file, read_shot_list, records_of, upload_pictures
from service.terminal import CommandFailed, ExitCode

DEFAULT_TEMPLATE = "{project}_{shot}_{seed}.mp4"


@click.command()
@click.argument("shots", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check everything and queue nothing.")
@click.option("--watch", is_flag=True, help="Stay and show how far it is.")
@click.option("--name", help="Name of the batch.  [default: the file's]")
@click.option(
    "-o", "--output", type=click.Path(file_okay=False, path_type=Path),
    help="Wait, then save clips and a contact sheet in this folder.",
)  # fmt: skip
@click.option("--template", default=DEFAULT_TEMPLATE, show_default=True, help="Names of the clips.")
@service_options
def render(
    shots: Path,
    dry_run: bool,
    watch: bool,
    name: str | None,
    output: Path | None,
    template: str,
    **where: Any,  # noqa: ANN401 - the three options of `service_options`
) -> None:
    """Render the shot list SHOTS, a .csv or .jsonl file with one shot per line.

    Pictures are named relative to the list. Submitting a list again under the same name runs only
    the shots that changed or failed.
    """
    rows = read_shot_list(shots)
    with connect(**where) as connection:
        batch = _submit(connection, shots, rows, name or shots.stem, is_dry_run=dry_run)
        click.echo(_summary(batch, rows), err=True)
        if dry_run:
            return
        if not watch and output is None:
            click.echo(batch["id"])
            click.echo(f"Follow it with: lanewise jobs watch --batch {batch['id']}", err=True)
            return
        done = watch_batch(connection, batch["id"], Console(stderr=True))
        if output is not None:
            save_results(connection, done, output, template)
        _check(done)


def _submit(
    connection: Connection, path: Path, rows: list[ShotRow], name: str, *, is_dry_run: bool
) -> dict[str, Any]:
    files = upload_pictures(connection, path, rows)
    body = {"name": name, "dry_run": is_dry_run, "shots": records_of(rows, files)}
    try:
        batch: dict[str, Any] = connection.call("POST", "/batches", json=body)
    except ServiceRefused as error:
        if error.code == "invalid_shot_list":
            text = by_line_of_file(error.message, path, rows)
            raise CommandFailed(text, code=ExitCode.USAGE) from None
        raise
    return batch


def _summary(batch: dict[str, Any], rows: list[ShotRow]) -> str:
    num_new = batch.get("num_new")
    if num_new is None:
        num_new = len(rows)
    reused = len(rows) - num_new
    kept = f", {reused} unchanged and kept" if reused else ""
    verb = "would be rendered" if batch.get("dry_run") else "queued"
    return f"{batch['name']}: {num_new} of {len(rows)} clips {verb}{kept}"


def _check(batch: dict[str, Any]) -> None:
    bad = [s for s in batch["shots"] if s["job"] and s["job"]["status"] != "succeeded"]
    if not bad:
        return
    lines = [f"{s['shot'] or s['job_id']}, seed {s['seed']}: {_reason(s['job'])}" for s in bad]
    raise CommandFailed(
        "\n       ".join([f"{len(bad)} of {len(batch['shots'])} clips are missing.", *lines]),
        hint="run the same command again: only what failed or changed runs",
    )


def _reason(job: dict[str, Any]) -> str:
    return str(job["error"]["message"]) if job["error"] else str(job["status"])
