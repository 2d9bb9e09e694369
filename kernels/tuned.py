"""Implementations measured faster than the default, by device family, op and bucket of shapes.

A product is never looked up by its marketing name: what has the same traits shares a table. An
entry holds for the versions that it was measured with, and for those alone.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path

from kernels.ledger import Rejection
from kernels.spec import Case

TABLES = Path(__file__).parent / "tuned"
# What decides the code that runs. Local build labels ("+cpu") do not enter.
VERSIONED = ("torch", "triton")
# A gain below this is within what two runs of the same code differ by.
LEAST_GAIN = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedEntry:
    """One measured choice. `ratio` is the default's time over the choice's, above 1.

    `pattern` is a bucket of cases (`case_pattern`); `machine` says what it was measured on.
    """

    op: str
    pattern: str
    choice: str
    ratio: float
    machine: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What a table says about a case: a choice with its reason, or why there is none."""

    choice: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTable:
    """The measured choices of one family, as they apply to the versions that run now.

    `versions` and `machine` are those of this process: an entry with others is stale, and one that
    is added carries these.
    """

    family: str
    entries: tuple[TunedEntry, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])

    def find(self, op: str, case: Case) -> TunedEntry | None:
        """The entry of the case's bucket, stale or not."""
        pattern = case_pattern(case)
        return next((e for e in self.entries if e.op == op and e.pattern == pattern), None)

    def lookup(self, op: str, case: Case, family: str) -> Lookup:
        """The choice for a case on a device of `family`."""
        entry = self.find(op, case)
        if entry is None:
            return Lookup()
        if family != self.family:
            return Lookup(reason=f"{_named(entry)} ignored: measured on {self.family}")
        stale = self.staleness(entry)
        if stale:
            return Lookup(reason=f"{_named(entry)} ignored: {stale}")
        reason = f"measured {entry.ratio:.2f} times the default on {self.family}, {entry.pattern}"
        return Lookup(choice=entry.choice, reason=reason)

    def staleness(self, entry: TunedEntry) -> str:
        """Which versions differ, by name; empty where none does."""
        names = sorted({*entry.versions, *self.versions})
        return "; ".join(
            f"measured with {name} {entry.versions.get(name, 'absent')}, here is "
            f"{self.versions.get(name, 'absent')}"
            for name in names
            if entry.versions.get(name) != self.versions.get(name)
        )


def _named(entry: TunedEntry) -> str:
    return f"tuned choice {entry.choice!r}"


def case_pattern(case: Case) -> str:
    """The bucket of a case: sizes down to a power of two, options in order, "none" left out.

    A case with 576 columns and one with 1000 share a bucket, one with 1024 does not.
    """
    sizes = {name: 1 << (n.bit_length() - 1) if n else 0 for name, n in case.sizes.items()}
    options = {name: v for name, v in sorted(case.options.items()) if v != "none"}
    return str(Case(dtype=case.dtype, sizes=dict(sorted(sizes.items())), options=options))


def consider(
    table: TunedTable,
    op: str,
    case: Case,
    choice: str,
    measured_default_s: float,
    measured_choice_s: float,
) -> TunedTable | Rejection:
    """The table with `choice` for the case's bucket, or why it was not taken.

    Taken only where measured faster than the default by `LEAST_GAIN`, and than the bucket's
    present choice if that is not stale.
    """
    times = (measured_default_s, measured_choice_s)
    if not all(math.isfinite(t) and t > 0 for t in times):
        return Rejection(candidate=choice, reasons=(f"{op}: no times to compare: {times}",))
    ratio = measured_default_s / measured_choice_s
    if ratio < LEAST_GAIN:
        reason = f"{op}: {ratio:.2f} times the default's speed, less than {LEAST_GAIN}"
        return Rejection(candidate=choice, reasons=(reason,))
    present = table.find(op, case)
    if present and not table.staleness(present):
        is_better = present.choice != choice and present.ratio >= ratio
        if is_better:
            reason = f"{op}: {ratio:.2f} times the default, {present.choice} {present.ratio:.2f}"
            return Rejection(candidate=choice, reasons=(reason,))
    entry = TunedEntry(
        op=op,
        pattern=case_pattern(case),
        choice=choice,
        ratio=round(ratio, 3),
        machine=table.machine,
        versions=table.versions,
    )
    kept = tuple(e for e in table.entries if (e.op, e.pattern) != (op, entry.pattern))
    return replace(table, entries=(*kept, entry))


def running_versions() -> Mapping[str, str]:
    """Releases of what decides the code that runs, without importing it."""
    found: dict[str, str] = {}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def load_table(family: str, folder: Path = TABLES) -> TunedTable:
    """The family's table, without entries where nothing was measured.

    Raises:
        ValueError: the file is no table; the message names it.
    """
    path = folder / f"{family}.json"
    table = TunedTable(family=family, versions=running_versions())
    if not path.exists():
        return table
    try:
        rows = json.loads(path.read_text())["entries"]
        return replace(table, entries=tuple(TunedEntry(**row) for row in rows))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no tuned table: {error}") from error


def save_table(table: TunedTable, folder: Path = TABLES) -> Path:
    """Write the entries, sorted, one file a family.

    Returns: the path written.
    """
    rows = sorted((asdict(e) for e in table.entries), key=lambda row: (row["op"], row["pattern"]))
    path = folder / f"{table.family}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"family": table.family, "entries": rows}, indent=1) + "\n")
    return path


@functools.lru_cache(maxsize=64)
def tuned_table(family: str) -> TunedTable:
    """What was measured faster than the default on a family; one reading of its file a process."""
    return load_table(family)
