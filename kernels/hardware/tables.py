"""A strict reader of TOML tables: each key is taken once, and what is left over is an error."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from kernels.hardware.errors import MalformedFile, UnknownName
from kernels.hardware.quantity import Dimension, parse_quantity

UNKNOWN = "unknown"


class Table:
    """One TOML table on its way into a dataclass.

    Every accessor takes its key out; `close` refuses keys that nobody took. The word "unknown"
    becomes None where an accessor ends in `_or_unknown`.
    Raises: MalformedFile, naming file, key and bound, from every method.
    """

    def __init__(self, values: Mapping[str, Any], file: str, path: str = "") -> None:
        self._values = dict(values)
        self._taken: list[str] = []
        self._file = file
        self._path = path

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def fail(self, key: str, problem: str) -> MalformedFile:
        """The error for `key` of this table."""
        return MalformedFile(self._file, self._path + key, problem)

    def _take(self, key: str) -> object:
        if key not in self._values:
            raise self.fail(key, "missing")
        self._taken.append(key)
        return self._values.pop(key)

    def text(self, key: str) -> str:
        """A string with something in it."""
        value = self._take(key)
        if not isinstance(value, str) or not value.strip():
            raise self.fail(key, f"{value!r} must be a string that is not empty")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self.fail(key, f"{value!r} must be true or false")
        return value

    def flag_or_unknown(self, key: str) -> bool | None:
        """True, false or "unknown"."""
        value = self._take(key)
        if value == UNKNOWN:
            return None
        if not isinstance(value, bool):
            raise self.fail(key, f'{value!r} must be true, false or "unknown"')
        return value

    def count(self, key: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, f"{value!r} must be a whole number from {low} to {high}")
        return value

    def count_or_unknown(self, key: str, low: int, high: int) -> int | None:
        """A whole number from `low` to `high`, or "unknown"."""
        if self._values.get(key) == UNKNOWN:
            self._take(key)
            return None
        return self.count(key, low, high)

    def choice(self, key: str, allowed: Iterable[str]) -> str:
        """One of the strings `allowed`."""
        value = self._take(key)
        options = tuple(allowed)
        if value not in options:
            raise self.fail(key, f"{value!r} must be one of {', '.join(options)}")
        return cast(str, value)

    def quantity(self, key: str, dimension: Dimension) -> float:
        """A number with its unit, in base units of `dimension`."""
        value = self._take(key)
        if not isinstance(value, str):
            raise self.fail(
                key, f'{value!r} has no unit; write a string such as "1 {dimension.base}"'
            )
        try:
            return parse_quantity(value, dimension)
        except ValueError as error:
            raise self.fail(key, str(error)) from error

    def quantity_or_unknown(self, key: str, dimension: Dimension) -> float | None:
        """A number with its unit, or "unknown"."""
        if self._values.get(key) == UNKNOWN:
            self._take(key)
            return None
        return self.quantity(key, dimension)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, perhaps empty."""
        return tuple(self._list(key, str, "strings"))

    def lists_of_counts(self, key: str) -> tuple[tuple[int, ...], ...]:
        """A list of lists of whole numbers, none below zero."""
        lists = self._list(key, list, "lists of whole numbers")
        for item in (item for items in lists for item in items):
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                raise self.fail(key, f"{item!r} must be a whole number from 0 up")
        return tuple(tuple(items) for items in lists)

    def rows(self, key: str) -> tuple["Table", ...]:
        """A list of tables, at least one."""
        values = self._list(key, dict, "tables")
        if not values:
            raise self.fail(key, "must hold at least one table")
        return tuple(
            Table(value, self._file, f"{self._path}{key}[{index}].")
            for index, value in enumerate(values)
        )

    def table(self, key: str) -> "Table":
        """The table under `key`."""
        value = self._take(key)
        if not isinstance(value, dict):
            raise self.fail(key, f"{value!r} must be a table")
        return Table(cast("dict[str, Any]", value), self._file, f"{self._path}{key}.")

    def is_table(self, key: str) -> bool:
        """Whether `key` holds a table; the key is not taken."""
        return isinstance(self._values.get(key), dict)

    def remaining(self) -> tuple[str, ...]:
        """The keys nobody has taken yet, in the file's order."""
        return tuple(self._values)

    def close(self) -> None:
        """Refuse what nobody took."""
        for key in self._values:
            raise self.fail(key, f"unknown key; known here: {', '.join(sorted(self._taken))}")

    def _list(self, key: str, kind: type, noun: str) -> list[Any]:
        value = self._take(key)
        items = cast("list[Any]", value) if isinstance(value, list) else None
        if items is None or not all(isinstance(item, kind) for item in items):
            raise self.fail(key, f"{value!r} must be a list of {noun}")
        return items


def read_table(file: Path) -> Table:
    """The whole of a TOML file as a Table.

    Raises: MalformedFile if it cannot be read or is not TOML.
    """
    try:
        return Table(tomllib.loads(file.read_text("utf-8")), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedFile(str(file), "(file)", f"cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise MalformedFile(str(file), "(file)", f"is not TOML: {error}") from error


def names_in(folder: Path) -> tuple[str, ...]:
    """The names of the tables in `folder`, sorted."""
    return tuple(sorted(file.stem for file in folder.glob("*.toml")))


def read_named(folder: Path, kind: str, name: str) -> Table:
    """The table called `name` in `folder`.

    Raises: UnknownName with the names that exist.
    """
    names = names_in(folder)
    if name not in names:
        raise UnknownName(kind, name, names)
    return read_table(folder / f"{name}.toml")
