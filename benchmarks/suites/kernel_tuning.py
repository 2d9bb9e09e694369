"""From a saved run of the kernels' suite to the tuned table of its device's family.

`python -m benchmarks.suites.kernel_tuning RESULTS.json [--folder kernels/tuned]`, on the machine
that the results come from. A generic candidate is not taken, however fast: `--strict` would refuse
it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.suites.kernel_cases import parse_case
from kernels.ledger import Rejection
from kernels.spec import Tier
from kernels.tuned import TABLES, TunedTable, consider, load_table, save_table


def tune(
    table: TunedTable, rows: Sequence[Mapping[str, Any]]
) -> tuple[TunedTable, list[Rejection]]:
    """The table with every choice that beat its default; the rows of a case stand together."""
    rejections: list[Rejection] = []
    timed = [row for row in rows if row.get("op") and row.get("ours")]
    for (op, case), group in itertools.groupby(timed, key=lambda row: (row["op"], row["case"])):
        default, *others = group
        for row in others:
            if row["tier"] == Tier.GENERIC:
                reason = f"{op}: it is generic"
                rejections.append(Rejection(candidate=row["implementation"], reasons=(reason,)))
                continue
            times = default["ours"] / 1e6, row["ours"] / 1e6
            found = consider(table, op, parse_case(case), row["implementation"], *times)
            if isinstance(found, Rejection):
                rejections.append(found)
            else:
                table = found
    return table, rejections


def main() -> int:
    """Write the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.kernel_tuning")
    parser.add_argument("results", type=Path, help="JSON of `python -m benchmarks kernels`")
    parser.add_argument("--folder", type=Path, default=TABLES, help="where the tables lie")
    options = parser.parse_args()
    document = json.loads(options.results.read_text())
    family = next(row["family"] for row in document["rows"] if "family" in row)
    table = replace(load_table(family, options.folder), machine=document["machine"])
    table, rejections = tune(table, document["rows"])
    for rejection in rejections:
        print(f"not taken: {rejection.candidate}: {'; '.join(rejection.reasons)}")
    print(f"{len(table.entries)} entries in {save_table(table, options.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
