"""Saving what a job made: atomic, checked, never over another file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.commands.connection import Connection
from service.terminal import CommandFailed

_UNSAFE = re.compile(r"[^\w.\-]+")
NAME_FIELDS = ("project", "shot", "seed", "job", "attempt")


def clip_of(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The artifact that is the clip."""
    return next((a for a in job["artifacts"] if a["media_type"].startswith("video/")), None)


def sheet_of(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The artifact that is the contact sheet."""
    return next((a for a in job["artifacts"] if "sheet" in a["name"]), None)


def save_artifact(connection: Connection, artifact: Mapping[str, Any], path: Path) -> Path:
    """Write an artifact to `path` by way of a temporary name.

    Raises: CommandFailed when the bytes are not those the service announced.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            for piece in connection.download(artifact["url"]):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != artifact["sha256"]:
            raise CommandFailed(f"{artifact['name']} arrived damaged.", hint="try again")
        draft.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def has_content(path: Path, artifact: Mapping[str, Any]) -> bool:
    """Whether `path` already holds exactly this artifact."""
    if not path.is_file() or path.stat().st_size != artifact["bytes"]:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == artifact["sha256"]


def free_path(path: Path) -> Path:
    """`path`, or the first of `name_2`, `name_3` … that does not exist."""
    candidate, number = path, 2
    while candidate.exists():
        candidate = path.with_stem(f"{path.stem}_{number}")
        number += 1
    return candidate


def file_name(template: str, job: Mapping[str, Any]) -> str:
    """`template` with the job's values; what a file system might not like becomes a dash.

    Raises: CommandFailed for a field that does not exist.
    """
    values = {
        "project": job["project"] or "clip",
        "shot": job["shot"] or job["id"][-6:],
        "seed": job["request"]["seed"],
        "job": job["id"],
        "attempt": job["attempt"],
    }
    try:
        clean = {name: _UNSAFE.sub("-", str(value)).strip(".") for name, value in values.items()}
        name = template.format(**clean)
    except (KeyError, IndexError, ValueError):
        raise CommandFailed(
            f"The naming template {template!r} cannot be filled in.",
            hint="fields: " + ", ".join(f"{{{field}}}" for field in NAME_FIELDS),
        ) from None
    return name
