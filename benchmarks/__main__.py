"""`python -m benchmarks [SUITE …] [--quick] [--json FILE]`: run suites, print one table each."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks.llm.options import LLMOptions, add_options
from benchmarks.report import print_table, save_json

SUITES = {
    "kernels": "benchmarks.suites.kernels",
    "collectives": "benchmarks.suites.collectives",
    "links": "benchmarks.suites.links",
    "llm": "benchmarks.suites.llm",
    "motion": "benchmarks.suites.motion",
    "overlap": "benchmarks.suites.overlap",
}


def main() -> int:
    """Run the suites asked for (all by default); returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of: {', '.join(SUITES)}")
    parser.add_argument("--quick", action="store_true", help="fewer cases, same checks")
    parser.add_argument("--json", type=Path, help="where to write the rows (one suite only)")
    add_options(parser)
    options = parser.parse_args()
    unknown = sorted(set(options.suites) - set(SUITES))
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are: {', '.join(SUITES)}")
    worst = 0
    for name in options.suites or SUITES:
        print(f"== {name}", flush=True)
        suite = importlib.import_module(SUITES[name])
        if name == "llm":  # saves as it goes, and has exit codes of its own
            worst = max(worst, suite.command(LLMOptions.of(options)))
            continue
        rows = suite.run(quick=options.quick)
        print_table(rows)
        print(f"saved {save_json(name, rows, options.json)}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
