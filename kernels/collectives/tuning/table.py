"""What was measured on a machine, as a file: constants, choices, and whose machine it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kernels.collectives.choice import SEED, Knowledge
from kernels.collectives.costs import LinkCosts
from kernels.collectives.topology import Topology
from kernels.table_file import TableFileError, TableFormat, fingerprint_of

FORMAT = TableFormat(
    noun="table of collectives",
    schema=3,
    remedy="delete it and measure again with `lanewise tune`, or go on with the seeds",
)
# A gain below this is within what two runs of the same code differ by.
LEAST_GAIN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Microseconds of one algorithm: the slowest rank's, over rounds."""

    least: float
    p20: float
    p50: float
    p80: float
    p95: float

    def doubts(self, other: Times) -> list[str]:
        """What speaks against taking this instead of the other, the seed's, in words.

        Nothing does where it is more than 5 % faster, the middle of all rounds apart, and no worse
        at its worst.
        """
        found: list[str] = []
        gain = other.p50 / self.p50 - 1
        if gain < 0:
            found.append(f"is {self.p50 / other.p50 - 1:.0%} slower at the median")
        elif gain <= LEAST_GAIN - 1:
            found.append(f"gains {gain:.1%} at the median, needs {LEAST_GAIN - 1:.0%}")
        if self.p80 >= other.p20:
            found.append(f"its p80 {self.p80:.0f} us overlaps the seed's p20 {other.p20:.0f} us")
        if self.p95 > other.p95:
            found.append(f"its p95 {self.p95:.0f} us is above the seed's {other.p95:.0f} us")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One measured choice. `us` are its times, `seed_us` those of the choice it is held against.

    `num_rounds` is how often each was timed; `is_checked` that its results were, before;
    `p50_us` are the medians of all candidates, `why` says what decided between them.
    """

    op: str
    n: int
    dtype: str
    contract: str
    ctx: str
    concurrent: str
    bytes: int
    choice: str
    seed: str
    us: Times
    seed_us: Times
    num_rounds: int
    is_checked: bool
    p50_us: Mapping[str, float] = field(default_factory=dict[str, float])
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All that was measured for one number of ranks on one machine.

    `rejected` says which candidates were left out and why. `made` is a date in ISO form.
    `copy_bytes_s` is what each rank copies while all do, the floor of what moves through memory.
    """

    facts: Mapping[str, Any]
    model: Mapping[str, LinkCosts]
    residual: Mapping[str, float]
    entries: tuple[Entry, ...]
    rejected: Mapping[str, str]
    made: str
    duration_s: float
    is_complete: bool = True
    copy_bytes_s: float = 0.0

    @property
    def fingerprint(self) -> str:
        """The digest of the facts."""
        return fingerprint_of(self.facts)

    def knowledge(self) -> Knowledge:
        """What choices rest on with this table."""
        chosen = {(e.op, e.contract, e.bytes): e.choice for e in self.entries}
        times_us = {(e.op, e.contract, e.bytes): e.us.p50 for e in self.entries}
        return Knowledge(
            links={**SEED.links, **self.model},
            chosen=chosen,
            times_us=times_us,
            evidence=f"measured {self.made} here, table {self.fingerprint[7:15]}",
        )


def save(table: Table, path: Path) -> Path:
    """Write the table whole or not at all."""
    return FORMAT.write(path, table.facts, asdict(table))


def load(path: Path, here: Topology, num_ranks: int) -> Table:
    """The table of a file, if it is one and was measured on a machine like this.

    Raises: TableFileError naming the key that is wrong, or what differs and both values.
    """
    table = FORMAT.read(path, here.facts(), _parse)
    others = {entry.n for entry in table.entries} - {num_ranks}
    if others:
        raise TableFileError(f"{path}: measured with {sorted(others)} ranks, here are {num_ranks}")
    return table


def _parse(record: Mapping[str, Any]) -> Table:
    given = {field.name: record[field.name] for field in fields(Table)}
    given["model"] = {name: LinkCosts(**costs) for name, costs in given["model"].items()}
    given["entries"] = tuple(_entry(row) for row in given["entries"])
    return Table(**given)


def _entry(row: Mapping[str, Any]) -> Entry:
    given = dict(row)
    us, seed_us = Times(**given.pop("us")), Times(**given.pop("seed_us"))
    return Entry(**given, us=us, seed_us=seed_us)
