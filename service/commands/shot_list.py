"""From a shot list on disk to what `POST /batches` takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.batch.shots import ShotProblem, ShotRow, find_missing_images, parse_shots
from service.commands.connection import Connection
from service.terminal import CommandFailed, ExitCode

_MOST_SHOWN = 50
_LOOKED_AT = 10_000
_LINE = re.compile(r"^line (\d+)")
_IS_REMOTE = ("file-", "data:")


def read_shot_list(path: Path) -> list[ShotRow]:
    """The rows of the list.

    Raises: CommandFailed with exit code 2 and every mistake by its line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8."
        raise CommandFailed(text, code=ExitCode.USAGE) from None
    shots = parse_shots(text, name=path.name)
    missing = find_missing_images(shots.rows, lambda image: _exists(path, image))
    problems = sorted([*shots.problems, *missing])
    if problems:
        raise CommandFailed(_listing(path, problems), code=ExitCode.USAGE)
    return list(shots.rows)


def upload_pictures(connection: Connection, path: Path, rows: Sequence[ShotRow]) -> dict[str, str]:
    """Send each picture once, and none that the service has already; file ids by name."""
    stored = connection.call("GET", "/v1/files", params={"purpose": "vision", "limit": _LOOKED_AT})
    by_hash: dict[str, str] = {file["sha256"]: file["id"] for file in stored["data"]}
    files: dict[str, str] = {}
    for image in dict.fromkeys(row.image for row in rows):
        if image.startswith(_IS_REMOTE):
            files[image] = image
            continue
        content = picture_path(path, image).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in by_hash:
            by_hash[digest] = connection.upload(Path(image).name, content)
        files[image] = by_hash[digest]
    return files


def records_of(rows: Sequence[ShotRow], files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows as JSON objects; what the list leaves open is left out."""
    records: list[dict[str, Any]] = []
    for row in rows:
        values = asdict(row) | {"image": files[row.image], "tags": list(row.tags)}
        del values["line"]
        records.append({n: v for n, v in values.items() if v not in (None, "", [])})
    return records


def by_line_of_file(message: str, path: Path, rows: Sequence[ShotRow]) -> str:
    """The service's mistakes, which count shots, with the lines of the file instead."""

    def line_of(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"{path}:{rows[number - 1].line}" if 1 <= number <= len(rows) else match[0]

    lines = dict.fromkeys(_LINE.sub(line_of, line) for line in message.splitlines())
    return "\n       ".join(lines)


def picture_path(path: Path, image: str) -> Path:
    """Where a picture of the list at `path` lies."""
    return path.parent / Path(image).expanduser()


def _exists(path: Path, image: str) -> bool:
    return image.startswith(_IS_REMOTE) or picture_path(path, image).is_file()


def _listing(path: Path, problems: Sequence[ShotProblem]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{path} has {count}; nothing was queued."]
    for problem in problems[:_MOST_SHOWN]:
        column = f"{problem.column}: " if problem.column else ""
        lines.append(f"{path}:{problem.line}: {column}{problem.message}")
    if len(problems) > _MOST_SHOWN:
        lines.append(f"and {len(problems) - _MOST_SHOWN} more")
    return "\n       ".join(lines)
