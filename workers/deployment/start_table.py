"""What people see when a deployment is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.protocol import WorkerFacts

_HEADER = ("role", "model", "source", "device", "dtype", "state", "load s", "no fallback")


def start_table(workers: Sequence[WorkerFacts]) -> list[str]:
    """One line per worker, under a header."""
    rows = [_HEADER, *(_row(facts) for facts in workers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(facts: WorkerFacts) -> tuple[str, ...]:
    load_s = facts.card.get("load_seconds")
    return (
        facts.role,
        facts.model,
        facts.source or "-",
        facts.devices,
        str(facts.card.get("dtype", "-")),
        str(facts.state),
        "-" if load_s is None else f"{load_s:.1f}",
        _no_fallback(facts.plan or {}),
    )


def _no_fallback(plan: dict[str, Any]) -> str:
    """The plan's score and what it lacks; the whole plan is at GET /v1/engine/plan."""
    if "no_fallback_score" not in plan:
        return "no plan"
    lacking = f", no kernel: {', '.join(plan['missing'])}" if plan.get("missing") else ""
    return f"{plan['no_fallback_score']:.3f}{lacking}"
