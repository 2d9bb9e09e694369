"""Files of what was measured on a machine: whole or not at all, checked, and of that machine alone.

A file holds a schema, the machine's facts with their fingerprint, the values, and a checksum of
all of them. Free of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_CHECKSUM = "checksum"


class TableFileError(ValueError):
    """A file that is no table, was edited, or is of another machine; says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """What one kind of file is called, which schema this version reads, and how to get another."""

    noun: str
    schema: int
    remedy: str

    def write(self, path: Path, facts: Mapping[str, Any], values: Mapping[str, Any]) -> Path:
        """Write the file whole or not at all; plain values of `facts` among the others."""
        record = {"schema": self.schema, "fingerprint": fingerprint_of(facts), **values}
        record["facts"] = dict(facts)
        text = json.dumps({_CHECKSUM: fingerprint_of(record), **record}, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise
        return path

    def read(
        self, path: Path, here: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T]
    ) -> T:
        """What `parse` makes of a file's values, if the file is whole and of a machine like this.

        Raises: TableFileError naming the key that is wrong, or every fact that differs and both
        of its values.
        """
        try:
            record = json.loads(path.read_text())
            if record["schema"] != self.schema:
                raise ValueError(f"schema {record['schema']}, this reads {self.schema}")
            self._check_whole(path, record)
            found = parse(record)
        except TableFileError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableFileError(
                f"{path} is no {self.noun} ({type(error).__name__}: {error}): {self.remedy}"
            ) from error
        self._check_machine(path, record["facts"], here)
        return found

    def _check_whole(self, path: Path, record: Mapping[str, Any]) -> None:
        rest = {name: value for name, value in record.items() if name != _CHECKSUM}
        if record[_CHECKSUM] != fingerprint_of(rest):
            raise TableFileError(
                f"{path}: its contents are not those of its checksum: it was edited or damaged: "
                f"{self.remedy}"
            )

    def _check_machine(
        self, path: Path, measured: Mapping[str, Any], here: Mapping[str, Any]
    ) -> None:
        differing = [
            f"{name}: measured with {measured.get(name, 'absent')}, "
            f"here is {here.get(name, 'absent')}"
            for name in sorted({*measured, *here})
            if measured.get(name) != here.get(name)
        ]
        if differing:
            raise TableFileError(
                f"{path} was measured on another machine: {'; '.join(differing)}: {self.remedy}"
            )


def fingerprint_of(facts: Mapping[str, Any]) -> str:
    """The digest of plain values, in whatever order they are given."""
    text = json.dumps(facts, sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def short_digest(fingerprint: str) -> str:
    """What of a fingerprint names a file."""
    return fingerprint.partition(":")[2][:12]
