"""Every kernel of this device against plain torch, libraries, and the machine's measured limit.

Correctness comes first: a wrong result is a row without a time. Calls are interleaved, from cold
caches. `vs_peer` compares with the fastest right one of torch's reference and the libraries here;
`of_limit` is the limit's time over ours. Where the reference is all there is, its row says
"generic" and has no peer but a library.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.limits import Limits, measure_limits
from benchmarks.peers.ops import Peer, peers_of
from benchmarks.plot import figure_path
from benchmarks.report import print_table, save_json
from benchmarks.suites.kernel_cases import cases_for, parse_case
from benchmarks.suites.kernel_figure import save_kernel_bars
from benchmarks.suites.kernel_oracle import ALLOWED, Trial, make_trial
from benchmarks.timing import (
    FULL,
    QUICK,
    Call,
    Effort,
    Samples,
    Stopwatch,
    interleaved,
    median_ratio,
    spread,
)
from kernels.hardware.traits import DeviceTraits
from kernels.ops.registry import op_spec
from kernels.runtime import device_traits
from kernels.spec import Case, Implementation, OpSpec, load_entry

Row = dict[str, Any]

EAGER = "torch eager"
# A library may round more often than our reference; beyond this it computes something else.
PEER_ALLOWED = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all rows of a run share."""

    device: torch.device
    traits: DeviceTraits
    watch: Stopwatch
    limits: Limits
    effort: Effort


def make_bench(device: torch.device, effort: Effort) -> Bench:
    """A device with its limits, measured now."""
    watch = Stopwatch(device)
    return Bench(
        device=device,
        traits=device_traits(device.type, device.index or 0),
        watch=watch,
        limits=measure_limits(watch, quick=effort == QUICK),
        effort=effort,
    )


def contenders(spec: OpSpec, case: Case, traits: DeviceTraits) -> tuple[Implementation, ...]:
    """Implementations that serve the case here; the reference only where it is all there is."""
    able = [i for i in spec.implementations if not i.unmet(traits, case)]
    own = [i for i in able if i.entry != spec.reference]
    return tuple(own or able)


def rows_of(spec: OpSpec, model: str, case: Case, bench: Bench) -> Iterator[Row]:
    """A row for each implementation of a case."""
    trial = make_trial(spec, case, bench.device)
    calls: dict[str, Call] = {}
    rows: list[Row] = []
    for implementation in contenders(spec, case, bench.traits):
        row = _head(spec, model, case, implementation)
        call = bound(implementation.load(), trial)
        row |= judged(trial, call)
        if "failure" not in row:
            calls[implementation.name] = call
        rows.append(row)
    eager: dict[str, Call] = {}
    if all(spec.find(row["implementation"]).entry != spec.reference for row in rows):
        eager[EAGER] = bound(load_entry(spec.reference), trial)
    peers = [_checked(p, trial) for p in peers_of(spec, trial.args, trial.options, bench.device)]
    if calls:
        present = {p.name: p.call for p in peers if p.call is not None}
        samples = interleaved(calls | eager | present, bench.watch, bench.effort)
        for row in rows:
            if "failure" not in row:
                row |= _timed(row["implementation"], samples, peers)
                row |= _limited(spec, case, row["ours"], bench.limits)
    yield from rows


def bound(function: Callable[..., Any], trial: Trial) -> Call:
    """The function with the trial's arguments."""
    return lambda: function(*trial.args, **trial.options)


def _head(spec: OpSpec, model: str, case: Case, implementation: Implementation) -> Row:
    return {
        "suite": "kernels",
        "row": f"{spec.name} [{implementation.name}, {implementation.tier}] {model}",
        "op": spec.name,
        "case": str(case),
        "model": model,
        "implementation": implementation.name,
        "tier": str(implementation.tier),
        "unit": "µs",
    }


def judged(trial: Trial, call: Call) -> Row:
    """Error over torch's, and why the implementation is wrong if it is.

    Raises:
        torch.OutOfMemoryError: the device is too small, which is no fault of the kernel.
    """
    try:
        error = trial.error_ratio(call())
    except torch.OutOfMemoryError:
        raise
    except Exception as raised:  # noqa: BLE001 - whatever a kernel raises is its row's failure
        return {"error": None, "failure": f"raised {type(raised).__name__}: {raised}"}
    if error <= ALLOWED:
        return {"error": error}
    shown = error if math.isfinite(error) else None  # JSON has no infinity
    return {"error": shown, "failure": f"wrong: {error:.3g} times torch's error, not {ALLOWED:g}"}


def _checked(peer: Peer, trial: Trial) -> Peer:
    """The peer, or why it cannot be compared with."""
    if peer.call is None:
        return peer
    try:
        error = trial.first_error_ratio(peer.call())
    except Exception as raised:  # noqa: BLE001 - a library that fails here is no peer here
        return Peer(name=peer.name, absent=f"n/a: raised {type(raised).__name__}: {raised}")
    if error > PEER_ALLOWED:
        return Peer(name=peer.name, absent=f"n/a: {error:.3g} times torch's error")
    return peer


def _timed(name: str, samples: Samples, peers: Sequence[Peer]) -> Row:
    """Our times in microseconds, and the ratio to each peer; the fastest is the row's."""
    ours = spread(samples[name])
    versions = {p.name: p.version for p in peers if p.call is not None}
    if EAGER in samples:
        versions[EAGER] = torch.__version__
    ratios = {peer: median_ratio(samples[peer], samples[name]) for peer in versions}
    row: Row = {
        "ours": ours.p50 * 1e6,
        "p20": ours.p20 * 1e6,
        "p80": ours.p80 * 1e6,
        "rounds": len(samples[name]),
        "vs_reference": ratios.get(EAGER),
        "peers": {p.name: p.absent for p in peers if p.absent} | ratios,
        "peer": "n/a",
    }
    if ratios:
        fastest = min(ratios, key=lambda peer: ratios[peer])
        row |= {"peer": fastest, "vs_peer": ratios[fastest], "peer_version": versions[fastest]}
    return row


def _limited(spec: OpSpec, case: Case, ours_us: float, limits: Limits) -> Row:
    limit = limits.of(spec, case)
    limit_us = limit.seconds * 1e6
    return {"limit": limit_us, "of_limit": limit_us / ours_us, "bound": limit.bound}


def relimited(rows: list[Row], limits: Limits) -> None:
    """Give timed rows the limits that are known at the end of a run."""
    for row in rows:
        if "of_limit" in row:
            row |= _limited(op_spec(row["op"]), parse_case(row["case"]), row["ours"], limits)


def limit_rows(bench: Bench, limits: Limits) -> list[Row]:
    """The measured limits themselves."""
    rates = {
        "copy": (limits.copy_bytes_s / 1e9, "GB/s"),
        "read": (limits.read_bytes_s / 1e9, "GB/s"),
        **{f"{d} product": (rate / 1e9, "GFLOP/s") for d, rate in limits.gemm_flop_s.items()},
    }
    head = {"suite": "kernels", "family": bench.traits.name}
    return [
        head | {"row": f"limit: {name}", "ours": rate, "unit": unit}
        for name, (rate, unit) in rates.items()
    ]


def _rows_or_reason(spec: OpSpec, model: str, case: Case, bench: Bench) -> list[Row]:
    """The case's rows, or one that says that the device's memory is too small for it."""
    try:
        return list(rows_of(spec, model, case, bench))
    except torch.OutOfMemoryError:
        head = _head(spec, model, case, contenders(spec, case, bench.traits)[0])
        return [head | {"error": None, "failure": "out of memory"}]


def run(quick: bool = False, ops: Sequence[str] | None = None) -> list[Row]:
    """Rows of all ops, or of `ops`; `quick` takes the first case of each, and saves no figure."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    bench = make_bench(device, QUICK if quick else FULL)
    rows: list[Row] = []
    for op, cases in cases_for(bench.device.type).items():
        if ops is None or op in ops:
            for model, case in cases[: 1 if quick else None]:
                rows += _rows_or_reason(op_spec(op), model, case, bench)
    for row in rows:
        if "failure" in row:
            print(f"FAILED {row['row']}: {row['failure']}")
    limits = bench.limits
    if not quick:
        limits = limits.better(measure_limits(bench.watch))
        relimited(rows, limits)
        print(f"saved {save_kernel_bars(rows, figure_path('kernels'))}")
    threads = f"OMP_NUM_THREADS={torch.get_num_threads()} " if device.type == "cpu" else ""
    print(f"repeat: {threads}python -m benchmarks kernels" + (" --quick" if quick else ""))
    return limit_rows(bench, limits) + rows


def main() -> int:
    """Chosen ops alone; the exit code is 1 where a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.kernels")
    parser.add_argument("ops", nargs="*", help="ops to run; all by default")
    parser.add_argument("--quick", action="store_true", help="first case of each, no figure")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args()
    rows = run(options.quick, options.ops or None)
    print_table(rows)
    print(f"saved {save_json('kernels', rows, options.json)}")
    return int(any("failure" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
