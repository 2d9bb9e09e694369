"""One cell of a shot list → its value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from service.http.json_values import as_list
from service.video.request import MAX_SEED

MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 100_000
MAX_TAGS = 16
MAX_TAG_CHARS = 64
MAX_SEEDS = 100
MAX_PRIORITY = 100
_SIZE = re.compile(r"(\d{1,6})\s*[xX×]\s*(\d{1,6})")
_WHOLE = re.compile(r"[+-]?\d{1,19}(\.0*)?")


class CellError(ValueError):
    """A cell that cannot be what its column needs; the message follows the column's name."""


def read_cell(column: str, cell: object) -> object | None:
    """The value of a cell; None for an empty one.

    Raises: CellError saying what was found and what is needed.
    """
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return None
    return COLUMNS[column](cell)


def _text(most: int) -> Callable[[object], str]:
    def read(cell: object) -> str:
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            raise CellError(f"is {_kind(cell)}, must be a text")
        text = str(cell).strip()
        if len(text) > most:
            raise CellError(f"has {len(text)} characters; at most {most} are taken")
        if any("\ud800" <= char <= "\udfff" or char == "\0" for char in text):
            raise CellError("holds a character that cannot be kept")
        return text

    return read


def _number(cell: object) -> float:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise CellError(f"is {_kind(cell)}, must be a number")
    try:
        value = float(cell)
    except (ValueError, OverflowError) as error:
        raise CellError(f"is {_short(cell)}, must be a number") from error
    if not math.isfinite(value):
        raise CellError(f"is {_short(cell)}, must be a finite number")
    return value


def _whole(low: int, high: int) -> Callable[[object], int]:
    def read(cell: object) -> int:
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            raise CellError(f"is {_kind(cell)}, must be a whole number")
        if isinstance(cell, int):
            value = cell
        elif match := _WHOLE.fullmatch(str(cell).strip()):
            value = int(match.group().partition(".")[0])
        else:
            raise CellError(f"is {_short(cell)}, must be a whole number")
        if not low <= value <= high:
            raise CellError(f"is {_short(value)}, must be {low} to {high}")
        return value

    return read


def _seeds(cell: object) -> tuple[int, ...]:
    parts = _parts(cell)
    read = _whole(0, MAX_SEED)
    seeds = tuple(read(part) for part in parts if str(part).strip())
    if not seeds:
        raise CellError("names no seed")
    if len(seeds) > MAX_SEEDS:
        raise CellError(f"names {len(seeds)} seeds; at most {MAX_SEEDS} are taken")
    return seeds


def _tags(cell: object) -> tuple[str, ...]:
    parts = _parts(cell)
    read = _text(MAX_TAG_CHARS)
    tags = tuple(dict.fromkeys(tag for part in parts if (tag := read(part))))
    if len(tags) > MAX_TAGS:
        raise CellError(f"names {len(tags)} tags; at most {MAX_TAGS} are taken")
    return tags


def _parts(cell: object) -> list[Any]:
    found = as_list(cell)
    return str(cell).replace(";", ",").split(",") if found is None else found


def _size(cell: object) -> tuple[int, int]:
    match = _SIZE.fullmatch(str(cell).strip())
    if match is None:
        raise CellError(f"is {_short(cell)}, must be WIDTHxHEIGHT, like 640x480")
    return int(match.group(1)), int(match.group(2))


def _fit(cell: object) -> str:
    text = str(cell).strip().lower()
    if text not in {"crop", "pad"}:
        raise CellError(f"is {_short(cell)}, must be crop or pad")
    return text


def _kind(cell: object) -> str:
    name = type(cell).__name__
    return {"bool": "true or false", "list": "a list", "dict": "an object"}.get(name, name)


def _short(cell: object) -> str:
    try:
        return ascii(cell)[:60]
    except ValueError:  # a whole number with more digits than Python prints
        return "a number that is too long"


COLUMNS: dict[str, Callable[[object], object]] = {
    "project": _text(MAX_NAME_CHARS),
    "sequence": _text(MAX_NAME_CHARS // 2),
    "shot": _text(MAX_NAME_CHARS // 2 - 1),
    "image": _text(MAX_TEXT_CHARS * 1000),
    "prompt": _text(MAX_TEXT_CHARS),
    "negative_prompt": _text(MAX_TEXT_CHARS),
    "seconds": _number,
    "fps": _number,
    "size": _size,
    "width": _whole(1, 10**6),
    "height": _whole(1, 10**6),
    "fit": _fit,
    "seed": _whole(0, MAX_SEED),
    "seeds": _seeds,
    "steps": _whole(1, 10**6),
    "guidance_scale": _number,
    "priority": _whole(-MAX_PRIORITY, MAX_PRIORITY),
    "tags": _tags,
    "model": _text(256),
}

# Columns that say the same thing in two ways.
SHAPES = (("size", ("width", "height")), ("seeds", ("seed",)))
