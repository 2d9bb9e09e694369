"""`python -m workers tune`: measure how fast ranks of this machine can talk, and keep the table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from kernels.collectives.board import MAX_RANKS
from kernels.collectives.fabric import DEVICE_TRANSPORTS, TRANSPORTS, Transport, openable
from kernels.collectives.topology import this_topology
from kernels.collectives.tuning.place import find_table, table_path
from kernels.collectives.tuning.recheck import Rechecked, recheck
from kernels.collectives.tuning.table import Table, save
from kernels.collectives.tuning.tune import TuneSettings, tune
from workers.planning.inputs import EXIT_OTHER, EXIT_STRICT, EXIT_USAGE, data_dir
from workers.planning.tune_report import Outcome
from workers.planning.tune_tables import print_found, print_outcome

_LONGEST_LIMIT_S = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Measure or check; 0 done, 1 could not be measured, 2 wrong usage, 3 refused by --strict."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 2 <= options.ranks <= MAX_RANKS:
        parser.error(f"--ranks {options.ranks}: from 2 to {MAX_RANKS}")
    if not 1 <= options.limit <= _LONGEST_LIMIT_S:
        parser.error(f"--limit {options.limit:g}: from 1 to {_LONGEST_LIMIT_S:g} seconds")
    if options.check and options.again:
        parser.error("--check measures nothing anew: leave --again out")
    folder = data_dir(options.data)
    if isinstance(folder, str):
        sys.stderr.write(f"lanewise tune: {folder}\n")
        return EXIT_USAGE
    try:
        outcome = _run(options, folder)
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"lanewise tune: {error}\n")
        return EXIT_OTHER
    _show(outcome, options)
    if options.strict and not outcome.holds:
        sys.stderr.write("refused by --strict: see above what does not hold, and what to do\n")
        return EXIT_STRICT
    return EXIT_OTHER if outcome.problem else 0


def _run(options: argparse.Namespace, folder: Path) -> Outcome:
    """Raises: RuntimeError where nothing can be measured, and why."""
    here, num_ranks = this_topology(), options.ranks
    transports, left_out = _transports(options.device, num_ranks)
    before = find_table(folder, here, num_ranks, options.device)
    if not options.json:
        print_found(before, here, num_ranks)
    if options.check or (before.state == "fresh" and not options.again):
        rechecked, problem = _recheck(before.table, num_ranks, transports)
        return Outcome(
            here=here,
            num_ranks=num_ranks,
            before=before,
            after=before,
            rechecked=rechecked,
            problem=problem,
        )
    settings = TuneSettings(num_ranks=num_ranks, limit_s=options.limit, transports=transports)
    begun = None if options.again else before.table
    report = _no_report if options.json else _progress(options.limit)
    table = tune(settings, here, begun, report, left_out)
    save(table, table_path(folder, here, num_ranks, options.device))
    after = find_table(folder, here, num_ranks, options.device)
    return Outcome(here=here, num_ranks=num_ranks, before=before, after=after)


def _transports(device: str, num_ranks: int) -> tuple[tuple[Transport, ...], Mapping[str, str]]:
    """What is tried, and what cannot be, with the reasons.

    Raises: RuntimeError where there are fewer devices than ranks, or no transport that their
    ranks can agree over.
    """
    if device == "cpu":
        return TRANSPORTS, {}
    if num_ranks > (found := torch.cuda.device_count()):
        raise RuntimeError(
            f"--ranks {num_ranks}: each takes a device of its own, torch sees {found}. Ask for "
            "fewer, or leave --device out to measure between processes"
        )
    is_open, closed = openable(DEVICE_TRANSPORTS)
    if "nccl" not in is_open:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in closed.items())
        raise RuntimeError(
            f"nothing can be measured between devices: {reasons}. Leave --device out to measure "
            "between processes"
        )
    return is_open, closed


def _recheck(
    table: Table | None, num_ranks: int, transports: tuple[Transport, ...]
) -> tuple[tuple[Rechecked, ...], str]:
    if table is None:
        return (), ""
    try:
        return recheck(table, num_ranks, transports=transports), ""
    except (RuntimeError, TimeoutError) as error:
        return (), f"the table could not be checked: {error}"


def _show(outcome: Outcome, options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.write(json.dumps(outcome.as_dict(), indent=1) + "\n")
    else:
        print_outcome(outcome, explains=options.explain)


def _no_report(_done: int, _of: int) -> None:
    """JSON alone goes to the terminal."""


def _progress(limit_s: float) -> Callable[[int, int], None]:
    is_terminal = sys.stderr.isatty()
    sys.stderr.write(f"measuring in processes of its own, for at most {limit_s:g} s\n")

    def report(done: int, of: int) -> None:
        if is_terminal:
            sys.stderr.write(f"\r{done} of {of} cases" + ("\n" if done == of else ""))
            sys.stderr.flush()

    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lanewise tune", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks will talk")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="whose tensors move"
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds at most")
    parser.add_argument("--data", default="", help="folder of all state")
    parser.add_argument("--explain", action="store_true", help="every candidate, floor and guard")
    parser.add_argument("--check", action="store_true", help="only say whether the table holds")
    parser.add_argument("--again", action="store_true", help="measure anew what is there already")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="3 unless the table holds")
    return parser
