"""`lanewise plan --calibrate` and `--validate`: measure this machine; predict, run and compare."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.calibration.table import Calibration, calibration_path, load, save
from kernels.collectives.topology import Topology, this_topology
from kernels.table_file import TableFileError
from workers.planning.inputs import EXIT_OTHER, EXIT_USAGE, data_dir

if TYPE_CHECKING:
    from kernels.calibration.crew import Crew
    from workers.planning.validation.report import Report

FLAGS = frozenset({"--calibrate", "--validate"})
_LONGEST_LIMIT_S = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and under --validate compare; 0 done, 1 a gate failed or nothing came, 2 usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 1 <= options.limit <= _LONGEST_LIMIT_S:
        parser.error(f"--limit {options.limit:g}: from 1 to {_LONGEST_LIMIT_S:g} seconds")
    folder = data_dir(options.data)
    if isinstance(folder, str):
        sys.stderr.write(f"lanewise plan: {folder}\n")
        return EXIT_USAGE
    try:
        return _run(options, folder)
    except (RuntimeError, OSError, TableFileError) as error:
        sys.stderr.write(f"lanewise plan: {error}\n")
        return EXIT_OTHER


def _run(options: argparse.Namespace, folder: Path) -> int:
    from kernels.calibration.crew import Crew
    from workers.settings import Settings

    here = this_topology()
    environment = Settings().child_environment(OMP_NUM_THREADS="1")
    with Crew(environment) as crew:
        calibration = _calibration(crew, options, calibration_path(folder, here), here)
        if not options.validate:
            _show_calibration(calibration, calibration_path(folder, here), as_json=options.json)
            return 0
        return _validate(crew, calibration, options)


def _calibration(
    crew: Crew, options: argparse.Namespace, path: Path, here: Topology
) -> Calibration:
    """What lies there; measured anew when asked for or where there is none.

    Raises: TableFileError for a file that is damaged or of another machine: it is not replaced
    unasked.
    """
    if path.exists() and not options.calibrate:
        return load(path, here)
    from kernels.calibration.calibrate import calibrate
    from workers.planning.validation.practice import practised

    found = practised(crew, calibrate(crew, here, _say), _say)
    save(found, path)
    return found


def _validate(crew: Crew, calibration: Calibration, options: argparse.Namespace) -> int:
    from workers.planning.validation.validate import validate

    machine = f"{calibration.facts['cpu_family']}, {calibration.facts['num_cores']} cores"
    report = validate(crew, calibration, machine, _say, limit_s=options.limit)
    _show_report(report, as_json=options.json)
    for failure in report.failures:
        sys.stderr.write(f"lanewise plan --validate: {failure}\n")
    return EXIT_OTHER if report.failures else 0


def _show_calibration(calibration: Calibration, path: Path, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"path": str(path), **asdict(calibration)}, indent=1) + "\n")
        return
    from workers.planning.calibration_tables import print_calibration

    print_calibration(calibration, path)


def _show_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.as_dict(), indent=1) + "\n")
        return
    from workers.planning.calibration_tables import print_validation

    print_validation(report)


def _say(text: str) -> None:
    """Progress goes where JSON does not."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lanewise plan", description=__doc__)
    parser.add_argument("--calibrate", action="store_true", help="measure this machine anew")
    parser.add_argument("--validate", action="store_true", help="predict, run and compare")
    parser.add_argument("--data", default="", help="folder of all state")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds of runs at most")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
