"""Plans and machines as tables: as wide as the terminal, one line a row where output is piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from kernels.layer_groups import layer_range
from kernels.spec import Tier

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.launch_plan import LaunchPlan, PlannedUse
    from kernels.ledger import Decision

_PIPED_WIDTH = 10_000
_COLOURS = {Tier.VENDOR: "green", Tier.FUSED: "green", Tier.GENERIC: "yellow"}


def console() -> Console:
    """As wide as the terminal; so wide that nothing wraps where the output is piped."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """One table; nothing where there are no rows."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if not table.row_count:
        return
    out = console()
    if out.is_terminal:
        out.print(table)
    else:
        with out.capture() as capture:
            out.print(table)
        lines = (line.rstrip() for line in capture.get().splitlines())
        out.file.write("\n".join(lines) + "\n")
    out.print()


def tier_text(tier: Tier) -> str:
    """A tier with its colour."""
    return f"[{_COLOURS[tier]}]{tier}[/]"


def why(decision: Decision) -> str:
    """Reasons of the choice, then why better ones were passed over."""
    passed = [f"not {r.candidate}: {', '.join(r.reasons)}" for r in decision.rejected]
    return "; ".join([*decision.reasons, *passed])


def amount(count: float, unit: str) -> str:
    """1536 FLOP is "1.54 kFLOP"."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(count) < 1000:
            return f"{count:.3g} {prefix}{unit}"
        count /= 1000
    return f"{count:.3g} E{unit}"


def print_plan(plan: LaunchPlan) -> None:
    """The plan: model and machine, layers, pages, mechanisms, what is missing, the score."""
    out = console()
    out.print(_headline(plan))
    for note in plan.model.notes:
        out.print(f"note: {note}")
    out.print()
    for phase in plan.model.phases:
        sizes = f"{phase.rows} rows, context {phase.context}, batch {phase.batch}"
        title = f"{phase.name}: kernels of a whole step of {sizes}; layouts divide it"
        rows = [_use_row(use) for use in plan.uses if use.phase == phase.name]
        header = ("layers", "op", "case", "runs on", "tier", "work", "traffic", "why")
        print_table(title, header, _without_repeats(rows))
    print_rows(plan)
    print_mechanisms(plan)
    _print_gaps(plan)
    _print_score(plan)


def _headline(plan: LaunchPlan) -> str:
    model, machine = plan.model, plan.machine
    real = "verified" if machine.verified else "not verified on hardware"
    return (
        f"[bold]{model.name}[/] ({model.family}, {model.parameters / 1e9:.2f} B parameters, "
        f"{amount(model.weight_bytes, 'B')} of weights) on [bold]{machine.name}[/] "
        f"({machine.description}; {real})\nplan {plan.hash}"
    )


def _use_row(planned: PlannedUse) -> tuple[str, ...]:
    decision = planned.decision
    flops, traffic = planned.weight
    times = f" x{planned.use.count}" if planned.use.count > 1 else ""
    return (
        planned.group.name,
        planned.use.op + times,
        str(planned.use.case),
        decision.chosen,
        tier_text(decision.tier),
        amount(flops, "FLOP"),
        amount(traffic, "B"),
        why(decision),
    )


def _without_repeats(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The first column only where it changes."""
    found: list[tuple[str, ...]] = []
    before = ""
    for row in rows:
        found.append((row[0] if row[0] != before else "", *row[1:]))
        before = row[0]
    return found


def print_rows(plan: LaunchPlan) -> None:
    """Cached rows with their pages."""
    rows = [
        (
            group.name,
            layer_range(group.layers),
            f"{group.row_bytes} B",
            f"{group.page_tokens} tokens = {group.rows_per_page} rows",
            f"{group.bytes_per_token:.6g} B",
            amount(group.bytes_per_sequence, "B"),
            group.reason,
        )
        for group in plan.model.rows
    ]
    total = f"cache: {plan.model.cache_bytes_per_token:.6g} bytes a token"
    header = ("cache group", "layers", "row", "page", "a token", "a sequence", "why")
    print_table(total, header, rows)


def print_mechanisms(plan: LaunchPlan) -> None:
    """The decisions that are not about one op."""
    kernels = {use.decision for use in plan.uses}
    rows = [
        (d.where, d.what, d.chosen, d.source, "; ".join(filter(None, (why(d), d.evidence))))
        for d in plan.decisions
        if d not in kernels and d.kind != "page"
    ]
    print_table("mechanisms", ("where", "what", "chosen", "source", "why"), rows)


def _print_gaps(plan: LaunchPlan) -> None:
    missing = sorted({d.what for d in plan.missing})
    out = console()
    if missing:
        out.print(f"no kernel yet: {', '.join(missing)}")
    rows = [(d.where, d.what, d.case, d.chosen, why(d)) for d in plan.uncovered]
    title = "shapes that no fused or vendor kernel covers"
    print_table(title, ("layers", "op", "case", "runs on", "why"), rows)


def _print_score(plan: LaunchPlan) -> None:
    rows = [(s.phase, s.device, f"{s.flops:.1%}", f"{s.traffic:.1%}") for s in plan.scores]
    title = f"no-fallback score {plan.no_fallback_score:.3f} (smallest share below)"
    print_table(title, ("phase", "device", "work on fused or vendor kernels", "traffic"), rows)


def print_machine(machine: Machine) -> None:
    """Devices with what they have and what of it is verified, then the links."""
    rows = [
        (
            f"{group.count} x {group.product.name}",
            group.product.family,
            amount(group.product.memory_bytes, "B"),
            traits.mma_family,
            traits.fp8_format,
            traits.triton,
            "yes" if traits.verified else "no",
            traits.source,
        )
        for group in machine.devices
        for traits in (group.product.traits,)
    ]
    header = ("devices", "family", "memory", "matrix", "fp8", "triton", "verified", "source")
    print_table(f"{machine.name}: {machine.description}", header, rows)
    links = machine.links
    rates = (
        ("hop", links.hop_bytes_s),
        ("host", links.host_bytes_s),
        ("staged", links.staged_bytes_s),
    )
    known = [
        f"{name} {amount(rate, 'B/s')}" if rate else f"{name} not known" for name, rate in rates
    ]
    row = (links.link_class, links.p2p, ", ".join(known), str(len(links.islands)), links.source)
    print_table("links", ("class", "p2p", "rates", "islands", "source"), [row])
