"""What the tuner found, as tables: the choices, why, what was left out, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernels.collectives.fabric import DEVICE_TRANSPORTS, EVIDENCE
from kernels.collectives.sentinel import DRIFT_RATIO, EVERY
from workers.planning.plan_tables import amount, console, print_table

if TYPE_CHECKING:
    from kernels.collectives.topology import Topology
    from kernels.collectives.tuning.place import Found
    from kernels.collectives.tuning.table import Entry, Table
    from workers.planning.tune_report import Outcome

_GUARDS = (
    ("checked", "whole numbers and prefilled outputs, on every rank, before anything is timed"),
    ("in turns", "all candidates of a case in each round; the slowest rank's time counts"),
    ("clear gain", "above 5 %, p80 below the seed's p20, p95 no worse; else the seed's choice"),
    ("bounded", "child processes under a time limit; what hangs is left out by name"),
    ("sentinel", f"one call in {EVERY} is timed while serving; above {DRIFT_RATIO:g}x: the seed"),
)


def print_found(found: Found, here: Topology, num_ranks: int) -> None:
    """The machine, and the table that there was."""
    out = console()
    devices = ", ".join(here.devices) or "no devices"
    out.print(
        f"machine {here.cpu_family}, {here.num_cores} cores, {here.num_numa_nodes} NUMA node(s), "
        f"{devices} · {num_ranks} ranks · {here.fingerprint[:19]}",
        markup=False,
    )
    out.print(f"table   {found.state}: {found.reason}", markup=False)
    out.print(f"        {found.path}", markup=False)
    out.print()


def print_outcome(outcome: Outcome, *, explains: bool) -> None:
    """Choices with their reasons, what was timed again, and what to do."""
    table = outcome.after.table
    if table:
        header = ("operation", "contract", "from", "ranks", "takes", "p50", "seed's p50", "why")
        print_table("choices", header, (_choice(entry) for entry in table.entries))
        rejected = [(name, reason) for name, reason in table.rejected.items()]
        print_table("left out by a guard", ("candidate", "why"), rejected)
        if explains:
            _explain(table)
    checked = [
        (r.entry.op, r.entry.contract, amount(r.entry.bytes, "B"), r.entry.choice,
         _us(r.entry.us.p50), _us(r.now_us), "drifted" if r.has_drifted else "holds")
        for r in outcome.rechecked
    ]  # fmt: skip
    header = ("operation", "contract", "from", "takes", "table", "now", "verdict")
    print_table("timed again", header, checked)
    _print_end(outcome)


def _print_end(outcome: Outcome) -> None:
    out = console()
    for line in _advice(outcome):
        out.print(line, markup=False)
    for name in DEVICE_TRANSPORTS:
        out.print(f"device collectives, {name}: {EVIDENCE[name]}", markup=False)


def _advice(outcome: Outcome) -> Iterator[str]:
    after = outcome.after
    if outcome.problem:
        yield outcome.problem
    if outcome.drifted:
        slow = ", ".join(f"{r.entry.choice} at {r.entry.bytes} B" for r in outcome.drifted)
        yield (
            f"drifted: {slow}. Is something else running? If not, look for a slower link or a "
            "hot card, then `lanewise tune --again`"
        )
    elif outcome.holds:
        yield f"fresh: ranks that are given {after.path} choose by it"
    if after.state == "incomplete":
        yield "incomplete: `lanewise tune` goes on where it stopped"
    elif after.state != "fresh":
        yield f"{after.state}: ranks choose by seed constants until you {after.remedy}"


def _choice(entry: Entry) -> tuple[str, ...]:
    mark = "" if entry.choice == entry.seed else "*"
    return (
        entry.op,
        entry.contract,
        amount(entry.bytes, "B"),
        str(entry.n),
        entry.choice + mark,
        _us(entry.us.p50),
        _us(entry.seed_us.p50),
        entry.why,
    )


def _explain(table: Table) -> None:
    """Every candidate's median against the floor; the fitted links; the guards."""
    rate_bytes_s = table.copy_bytes_s
    rows = [
        (e.op, e.contract, amount(e.bytes, "B"), _us(_floor_us(e, rate_bytes_s)),
         f"{_floor_us(e, rate_bytes_s) / e.us.p50:.0%}", _candidates(e))
        for e in table.entries
    ]  # fmt: skip
    header = ("operation", "contract", "from", "floor", "of floor", "p50 of every candidate")
    title = f"candidates; the floor: same bytes copied at {amount(rate_bytes_s, 'B/s')} a rank"
    print_table(title, header, rows)
    links = [
        (name, _us(costs.latency_s * 1e6), amount(costs.ring_bytes_s, "B/s"),
         amount(costs.fan_bytes_s, "B/s"), f"{table.residual[name]:.0%}")
        for name, costs in table.model.items()
    ]  # fmt: skip
    header = ("transport", "start", "to a neighbour", "to all", "off by at the median")
    print_table("links, fitted", header, links)
    print_table("guards", ("guard", "rule"), _GUARDS)


def _candidates(entry: Entry) -> str:
    ordered = sorted(entry.p50_us.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {p50_us:.0f}" for name, p50_us in ordered)


def _floor_us(entry: Entry, rate_bytes_s: float) -> float:
    """What a rank must at least take from others, at the rate of a bare copy on all ranks."""
    share = {"all_reduce": 2 * (entry.n - 1) / entry.n, "broadcast": 1.0}
    moved_bytes = share.get(entry.op, (entry.n - 1) / entry.n) * entry.bytes
    return moved_bytes / rate_bytes_s * 1e6


def _us(time_us: float) -> str:
    return amount(time_us / 1e6, "s") if time_us >= 1e6 else f"{time_us:.0f} us"
