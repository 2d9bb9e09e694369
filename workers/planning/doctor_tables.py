"""The doctor's report as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.hardware.profile import load_profile
from workers.planning.plan_tables import (
    console,
    print_machine,
    print_plan,
    print_table,
    tier_text,
    why,
)

if TYPE_CHECKING:
    from workers.planning.doctor_report import Report


def print_report(report: Report) -> None:
    """Machine, vendor profiles, every op, what else is needed, what could not be read."""
    print_machine(report.machine)
    _print_profiles(report)
    rows = [
        (d.where, d.case, d.chosen, tier_text(d.tier), d.evidence, why(d)) for d in report.decisions
    ]
    header = ("op", "case", "runs on", "tier", "evidence", "why not a better one")
    print_table("ops", header, rows)
    needs = [(n.name, "yes" if n.is_there else "[red]no[/]", n.detail) for n in report.needs]
    print_table("also needed", ("what", "there", "where, or what to do"), needs)
    if report.notes:
        out = console()
        out.print("[bold]could not be read[/]")
        for note in report.notes:
            out.print(f"  {note}", markup=False)
        out.print()
    if report.plan:
        print_plan(report.plan)


def _print_profiles(report: Report) -> None:
    rows = [
        (traits.name, traits.backend, line)
        for traits in report.machine.traits
        for line in load_profile(traits.backend).lines()
    ]
    print_table("vendor profile", ("family", "back end", "what it allows"), rows)
    unknown = [
        (traits.name, cell, traits.note(cell))
        for traits in report.machine.traits
        for cell in traits.unknown_cells()
    ]
    print_table("not known about the devices", ("family", "fact", "why"), unknown)
