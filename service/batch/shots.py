"""Shot lists: CSV or JSONL text → rows, or every mistake in it with its line. Free of FastAPI.

Columns (any order, only shot, image and prompt are required):
project, sequence, shot, image, prompt, negative_prompt, seconds, fps, size or width and height,
fit, seed or seeds ("1,2,3": one clip per seed), steps, guidance_scale, priority, tags, model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from service.batch.shot_cells import COLUMNS, SHAPES, CellError, read_cell
from service.batch.shot_text import Line, read_lines
from service.http.json_values import as_object

MAX_SHOTS = 10_000
REQUIRED = ("shot", "image", "prompt")


@dataclass(frozen=True, slots=True, order=True)
class ShotProblem:
    """A mistake: the line (1 is the first of the text), the column ("" for the line), and why."""

    line: int
    column: str
    message: str

    def __str__(self) -> str:
        """The mistake in one line."""
        where = f"line {self.line}, {self.column}" if self.column else f"line {self.line}"
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotRow:
    """One clip to make; None leaves a choice to the model. `image` names a picture."""

    line: int
    shot: str
    image: str
    prompt: str
    project: str = ""
    sequence: str = ""
    negative_prompt: str = ""
    seconds: float | None = None
    fps: float | None = None
    width: int | None = None
    height: int | None = None
    fit: str = "crop"
    seed: int | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    model: str | None = None

    @property
    def label(self) -> str:
        """The shot's name with its sequence."""
        return f"{self.sequence}_{self.shot}" if self.sequence else self.shot


@dataclass(frozen=True, slots=True)
class ShotList:
    """All rows that could be read, and all problems; with any problem nothing may be queued."""

    rows: tuple[ShotRow, ...]
    problems: tuple[ShotProblem, ...]


def parse_shots(text: str, *, name: str = "") -> ShotList:
    """Read a shot list. JSONL is told by its first character `{`, or by the file's name.

    Never raises for what the text holds: every mistake is a problem in the result.
    """
    is_jsonl = text.lstrip("\ufeff \t\r\n").startswith("{") or name.endswith((".jsonl", ".ndjson"))
    lines, mistakes = read_lines(text, is_jsonl=is_jsonl)
    problems = [ShotProblem(line, "", message) for line, message in mistakes]
    return _read(lines, problems)


def parse_records(records: Sequence[object]) -> ShotList:
    """Read shots that come as JSON objects; the first has line 1."""
    lines: list[Line] = []
    problems: list[ShotProblem] = []
    for line, record in enumerate(records, start=1):
        cells = as_object(record)
        if cells is None:
            problems.append(ShotProblem(line, "", "a shot must be an object"))
        else:
            lines.append(Line(line, line, cells))
    return _read(lines, problems)


def find_missing_images(
    rows: Iterable[ShotRow], exists: Callable[[str], bool]
) -> list[ShotProblem]:
    """One problem for each line whose picture is not there."""
    missing = {row.line: row.image for row in rows if not exists(row.image)}
    return [
        ShotProblem(line, "image", f"the picture {image!r} is missing")
        for line, image in missing.items()
    ]


def _read(lines: Sequence[Line], problems: list[ShotProblem]) -> ShotList:
    if not lines and not problems:
        problems.append(ShotProblem(1, "", "the list holds no shots"))
    rows: list[ShotRow] = []
    for line in lines:
        found, mistakes = _read_line(line)
        rows += found
        problems += mistakes
    if len(rows) > MAX_SHOTS:
        text = f"the list makes {len(rows)} clips; at most {MAX_SHOTS} are taken at once"
        problems.append(ShotProblem(rows[-1].line, "", text))
    faulty = {problem.line for problem in problems}
    problems += _find_duplicates(row for row in rows if row.line not in faulty)
    return ShotList(tuple(rows), tuple(sorted(set(problems))))


def _read_line(line: Line) -> tuple[list[ShotRow], list[ShotProblem]]:
    """The rows of a line and its problems; bad cells that have a default count as empty."""
    values: dict[str, Any] = {}
    problems: list[ShotProblem] = []
    for column, cell in line.cells.items():
        if column not in COLUMNS:
            text = f"is no column; known are {', '.join(COLUMNS)}"
            problems.append(ShotProblem(line.header, column[:64], text))
            continue
        try:
            value = read_cell(column, cell)
        except CellError as error:
            problems.append(ShotProblem(line.number, column, str(error)))
            continue
        if value is not None:
            values[column] = value
    named = {problem.column for problem in problems}
    missing = [c for c in REQUIRED if c not in values and c not in named]
    problems += [ShotProblem(line.number, column, "is missing") for column in missing]
    clashes = _find_clashes(line.number, values, named)
    is_whole = not clashes and all(column in values for column in REQUIRED)
    return (_rows(line.number, values) if is_whole else []), problems + clashes


def _find_clashes(line: int, values: dict[str, Any], named: set[str]) -> list[ShotProblem]:
    problems: list[ShotProblem] = []
    for column, others in SHAPES:
        given = [other for other in others if other in values]
        if column in values and given:
            text = f"clashes with {' and '.join(given)}; give one or the other"
            problems.append(ShotProblem(line, column, text))
    if ("width" in values) != ("height" in values):
        column = "height" if "width" in values else "width"
        if column not in named:
            text = "is missing; give width and height, or neither"
            problems.append(ShotProblem(line, column, text))
        values.pop("width", None)
        values.pop("height", None)
    return problems


def _rows(line: int, values: dict[str, Any]) -> list[ShotRow]:
    values = dict(values)
    if "size" in values:
        values["width"], values["height"] = values.pop("size")
    seeds: Sequence[int | None] = values.pop("seeds", None) or (values.pop("seed", None),)
    return [ShotRow(line=line, seed=seed, **values) for seed in seeds]


def _find_duplicates(rows: Iterable[ShotRow]) -> list[ShotProblem]:
    problems: list[ShotProblem] = []
    first: dict[tuple[str, str, str, int | None], int] = {}
    for row in rows:
        key = (row.project, row.sequence, row.shot, row.seed)
        if key in first:
            seed = "no seed" if row.seed is None else f"the seed {row.seed}"
            text = f"{row.label!r} with {seed} is on line {first[key]} already"
            problems.append(ShotProblem(row.line, "shot", text))
        first.setdefault(key, row.line)
    return problems
