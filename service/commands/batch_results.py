"""Saving what a batch made: clips by a naming template, one contact sheet of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from service.commands.connection import Connection
from service.commands.downloads import clip_of, file_name, free_path, has_content, save_artifact
from service.terminal import CommandFailed


def save_results(
    connection: Connection, batch: dict[str, Any], folder: Path, template: str
) -> None:
    """Save each clip that is not there yet; nothing that is there is overwritten."""
    num_clips = 0
    for shot in batch["shots"]:
        clip = clip_of(shot["job"]) if shot["job"] else None
        if clip is None:
            continue
        num_clips += 1
        path = folder / file_name(template, shot["job"])
        if _has_any_version(path, clip):
            continue
        click.echo(str(save_artifact(connection, clip, free_path(path))))
    if num_clips:
        _save_sheet(connection, batch, folder)


def _has_any_version(path: Path, clip: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether `path` or one of its numbered siblings is this clip."""
    siblings = path.parent.glob(f"{path.stem}_[0-9]*{path.suffix}")
    return any(has_content(candidate, clip) for candidate in (path, *siblings))


def _save_sheet(connection: Connection, batch: dict[str, Any], folder: Path) -> None:
    content = b"".join(connection.download(f"/batches/{batch['id']}/contact_sheet.png"))
    path = folder / file_stem(batch["name"])
    if path.exists() and path.read_bytes() == content:
        return
    path = free_path(path)
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from error
    click.echo(str(path))


def file_stem(name: str) -> str:
    """The sheet's file name for a batch of any name."""
    clean = "".join(char if char.isalnum() or char in "-_." else "-" for char in name)
    return f"{clean.strip('.') or 'batch'}_contact_sheet.png"
