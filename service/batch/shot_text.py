"""The lines of a shot list: CSV (comma, semicolon or tab) or JSONL."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO

from service.http.json_values import as_object

_DELIMITERS = ",;\t"
Mistake = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of one line by column name; `header` is the line that names the columns."""

    number: int
    header: int
    cells: Mapping[str, object]


def read_lines(text: str, *, is_jsonl: bool) -> tuple[list[Line], list[Mistake]]:
    """The lines, and what kept others from being read. Blank lines are skipped."""
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        return [], [(text[: text.index("\0")].count("\n") + 1, "holds a NUL character")]
    return _read_jsonl(text) if is_jsonl else _read_csv(text)


def _read_csv(text: str) -> tuple[list[Line], list[Mistake]]:
    header_line = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(_DELIMITERS, key=header_line.count)
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines: list[Line] = []
    mistakes: list[Mistake] = []
    columns: list[str] = []
    number = header = 1
    try:
        for cells in reader:
            start, number = number, reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                header, columns = start, [cell.strip().lower() for cell in cells]
                mistakes += _check_header(start, columns)
                continue
            if len(cells) > len(columns):
                text_ = f"has {len(cells)} cells, but the header has {len(columns)}"
                mistakes.append((start, text_))
                continue
            lines.append(Line(start, header, dict(zip(columns, cells, strict=False))))
    except csv.Error as error:
        mistakes.append((number, f"is no valid CSV: {error}"))
    return lines, mistakes


def _check_header(line: int, columns: list[str]) -> list[Mistake]:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    mistakes = [(line, f"the header names the column {column!r} twice") for column in twice]
    if "" in columns:
        mistakes.append((line, "the header has a column without a name"))
    return mistakes


def _read_jsonl(text: str) -> tuple[list[Line], list[Mistake]]:
    lines: list[Line] = []
    mistakes: list[Mistake] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            mistakes.append((number, f"is no valid JSON: {str(error)[:80]}"))
            continue
        cells = as_object(value)
        if cells is None:
            mistakes.append((number, "must be a JSON object"))
        else:
            lines.append(Line(number, number, cells))
    return lines, mistakes


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value
