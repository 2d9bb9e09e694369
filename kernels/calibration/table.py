"""What was measured of a machine's computing and talking, as a file: constants and whose they are.

Free of torch: a planner reads it before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kernels.calibration.in_steps import InSteps
from kernels.calibration.work import Fit, Work, features
from kernels.collectives.topology import Topology
from kernels.table_file import TableFormat, fingerprint_of, short_digest

FORMAT = TableFormat(
    noun="calibration", schema=2, remedy="measure again with `lanewise plan --calibrate`"
)
FOLDER = "calibration"
# Other programs had more of the processors than this: what was measured is theirs as well.
BUSY_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of one machine, two ranks of one thread each computing at the same time.

    `computing` by kind of work. By collective, with the terms (1, bytes): `wire` is what one takes
    beyond what the link's rate gives, `wire_busy` the same while its rank computes, and
    `computing_lost` the computing time that one costs its rank. `in_steps` is what whole steps
    take beyond those. `balance_bytes_s` is a link as slow as computing is here: validated rates
    are multiples of it. `seen_bytes_s` and `seen_sizes` are the rates and works that were measured
    at. `spread` is how far rounds of measuring computing lay apart, `disturbed` the share of the
    processors that other programs used meanwhile, `load` the machine's load before.
    Units: seconds, bytes a second; shares; programs; `made` is a date in ISO form.
    """

    facts: Mapping[str, Any]
    computing: Mapping[str, Fit]
    wire: Mapping[str, Fit]
    wire_busy: Mapping[str, Fit]
    computing_lost: Mapping[str, Fit]
    in_steps: InSteps
    balance_bytes_s: float
    seen_bytes_s: tuple[float, ...]
    seen_sizes: Mapping[str, tuple[tuple[int, ...], ...]]
    spread: float
    disturbed: float
    load: float
    made: str
    duration_s: float

    @property
    def fingerprint(self) -> str:
        """The digest of the facts."""
        return fingerprint_of(self.facts)

    @property
    def is_quiet(self) -> bool:
        """Whether other programs left the machine to the measurement."""
        return self.disturbed <= BUSY_RATIO

    def seconds(self, work: Work) -> float:
        """What a work takes on one thread, in a loop of its own."""
        return self.computing[work.kind].seconds(features(work))

    def call_s(self, work: Work) -> float:
        """What of that is the call's, however much it computes."""
        return self.computing[work.kind].constants[0]

    def has_seen(self, work: Work) -> bool:
        """Whether the very sizes of a work were measured: then it is no test of a prediction."""
        return work.sizes in self.seen_sizes.get(work.kind, ())


def calibration_path(data_dir: Path, here: Topology) -> Path:
    """The file of a machine in a data folder."""
    return data_dir / FOLDER / f"{short_digest(here.fingerprint)}.json"


def save(calibration: Calibration, path: Path) -> Path:
    """Write the file whole or not at all."""
    return FORMAT.write(path, calibration.facts, asdict(calibration))


def load(path: Path, here: Topology) -> Calibration:
    """The calibration of a file, if it is one and of a machine like this.

    Raises: TableFileError naming the key that is wrong, or the facts that differ.
    """
    return FORMAT.read(path, here.facts(), _parse)


def _parse(record: Mapping[str, Any]) -> Calibration:
    given = {field.name: record[field.name] for field in fields(Calibration)}
    for name in ("computing", "wire", "wire_busy", "computing_lost"):
        given[name] = {kind: _fit(row) for kind, row in given[name].items()}
    given["in_steps"] = InSteps(**{name: _fit(row) for name, row in given["in_steps"].items()})
    given["seen_bytes_s"] = tuple(given["seen_bytes_s"])
    given["seen_sizes"] = {
        kind: tuple(tuple(sizes) for sizes in rows) for kind, rows in given["seen_sizes"].items()
    }
    return Calibration(**given)


def _fit(row: Mapping[str, Any]) -> Fit:
    given = dict(row)
    return Fit(constants=tuple(given.pop("constants")), **given)
