"""`python -m workers doctor`: this machine, and what would run on it, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernels.errors import StrictRefusal
from kernels.spec import Tier
from workers.planning.doctor_report import examine
from workers.planning.inputs import EXIT_STRICT, EXIT_USAGE, PlanFailed
from workers.planning.plan import add_strictness

if TYPE_CHECKING:
    from workers.planning.doctor_report import Report


def main(arguments: Sequence[str]) -> int:
    """Print the report; 3 when something lies below the floor under --strict, 2 on wrong usage."""
    parser = argparse.ArgumentParser(prog="lanewise doctor", description=__doc__)
    add_strictness(parser)
    parser.add_argument("--model", default="", help="also plan this model")
    options = parser.parse_args(arguments)
    try:
        report = examine(options.machine, options.model)
    except PlanFailed as error:
        sys.stderr.write(f"lanewise doctor: {error}\n")
        return EXIT_USAGE
    if options.json:
        sys.stdout.write(json.dumps(report.as_dict(), indent=1) + "\n")
    else:
        from workers.planning.doctor_tables import print_report

        print_report(report)
    return _verdict(report, Tier(options.floor)) if options.strict else 0


def _verdict(report: Report, floor: Tier) -> int:
    try:
        report.require(floor)
    except StrictRefusal as refusal:
        sys.stderr.write(f"refused by --strict (floor {floor}):\n{refusal}\n")
        return EXIT_STRICT
    return 0
