"""What was measured of a machine's computing and talking, as a file: constants and whose they are.

Free of torch: a planner reads it before anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kernels.calibration.work import Fit, Work, features
from kernels.collectives.topology import Topology, fingerprint_of

SCHEMA = 1
FOLDER = "calibration"


class CalibrationError(ValueError):
    """A file that is no calibration, or one of another machine; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of one machine, two ranks of one thread each computing at the same time.

    `computing` by kind of work. By collective, with the terms (1, bytes): `wire` is what one takes
    beyond what the link's rate gives, `wire_busy` the same while its rank computes, and
    `computing_lost` the computing time that one costs its rank. `handoff_s` is a node's start on
    another stream. `balance_bytes_s` is a link as slow as computing is here: validated rates are
    multiples of it. `seen_bytes_s` are the rates that were measured at. `disturbed` is the share
    of the processors that other programs used meanwhile.
    Units: seconds, bytes a second; `made` is a date in ISO form.
    """

    facts: Mapping[str, Any]
    computing: Mapping[str, Fit]
    wire: Mapping[str, Fit]
    wire_busy: Mapping[str, Fit]
    computing_lost: Mapping[str, Fit]
    handoff_s: float
    balance_bytes_s: float
    seen_bytes_s: tuple[float, ...]
    seen_sizes: Mapping[str, tuple[tuple[int, ...], ...]]
    disturbed: float
    made: str
    duration_s: float

    @property
    def fingerprint(self) -> str:
        """The digest of the facts."""
        return fingerprint_of(self.facts)

    def seconds(self, work: Work) -> float:
        """What a work takes on one thread."""
        return self.computing[work.kind].seconds(features(work))

    def has_seen(self, work: Work) -> bool:
        """Whether the very sizes of a work were measured: then it is no test of a prediction."""
        return work.sizes in self.seen_sizes.get(work.kind, ())


def calibration_path(data_dir: Path, here: Topology) -> Path:
    """The file of a machine in a data folder."""
    return data_dir / FOLDER / f"{here.fingerprint.partition(':')[2][:12]}.json"


def save(calibration: Calibration, path: Path) -> Path:
    """Write the file whole or not at all."""
    record = {"schema": SCHEMA, "fingerprint": calibration.fingerprint, **asdict(calibration)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)
    return path


def load(path: Path, here: Topology) -> Calibration:
    """The calibration of a file, if it is one and of a machine like this.

    Raises: CalibrationError naming the key that is wrong, or the facts that differ.
    """
    try:
        record = json.loads(path.read_text())
        found = _parse(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CalibrationError(
            f"{path} is no calibration ({type(error).__name__}: {error}): measure again with "
            "`lanewise plan --calibrate`"
        ) from error
    if record["fingerprint"] != found.fingerprint:
        raise CalibrationError(f"{path}: its facts are not those of its fingerprint: it was edited")
    facts = here.facts()
    differing = [
        f"{name}: measured with {found.facts.get(name, 'absent')}, here is {facts.get(name)}"
        for name in sorted({*found.facts, *facts})
        if found.facts.get(name) != facts.get(name)
    ]
    if differing:
        raise CalibrationError(
            f"{path} was measured on another machine: {'; '.join(differing)}. Measure again with "
            "`lanewise plan --calibrate`"
        )
    return found


def confidence(data_dir: Path, here: Topology) -> str:
    """One line for a plan: what is calibrated on this machine, and how well it is known."""
    path = calibration_path(data_dir, here)
    if not path.exists():
        return "nothing calibrated here; `lanewise plan --calibrate` measures this machine"
    try:
        found = load(path, here)
    except CalibrationError as error:
        return f"calibration refused: {error}"
    wire = ", ".join(f"{name} {fit.error:.0%}" for name, fit in found.wire.items())
    return (
        f"this processor calibrated {found.made}: gemm {found.computing['gemm'].error:.0%}, "
        f"attention {found.computing['attention'].error:.0%}, {wire}"
    )


def _parse(record: Mapping[str, Any]) -> Calibration:
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']}, this reads {SCHEMA}")
    given = {field.name: record[field.name] for field in fields(Calibration)}
    for name in ("computing", "wire", "wire_busy", "computing_lost"):
        given[name] = {kind: _fit(row) for kind, row in given[name].items()}
    given["seen_bytes_s"] = tuple(given["seen_bytes_s"])
    given["seen_sizes"] = {
        kind: tuple(tuple(sizes) for sizes in rows) for kind, rows in given["seen_sizes"].items()
    }
    return Calibration(**given)


def _fit(row: Mapping[str, Any]) -> Fit:
    given = dict(row)
    return Fit(constants=tuple(given.pop("constants")), **given)
