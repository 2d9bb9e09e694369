"""What has come back from the ranks so far, as messages of rank 0 tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.collectives.costs import LinkCosts
from kernels.collectives.tuning.probe import Case
from kernels.collectives.tuning.table import Entry, Table


@dataclass(slots=True)
class Progress:
    """What has come back so far."""

    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])
    model: dict[str, LinkCosts] = field(default_factory=dict[str, LinkCosts])
    residual: dict[str, float] = field(default_factory=dict[str, float])
    rejected: dict[str, str] = field(default_factory=dict[str, str])
    copy_bytes_s: float = 0.0
    trying: str = ""
    case: int = -1
    is_complete: bool = False


def resumed(cases: Sequence[Case], begun: Table | None) -> Progress:
    """The cases of a table that are among those to be measured, and what it left out."""
    if begun is None:
        return Progress()
    held = {(e.op, e.contract, e.bytes): e for e in begun.entries}
    keys = [(case.op, case.contract, case.size_bytes) for case in cases]
    return Progress(
        entries={index: held[key] for index, key in enumerate(keys) if key in held},
        model=dict(begun.model),
        residual=dict(begun.residual),
        rejected=dict(begun.rejected),
        copy_bytes_s=begun.copy_bytes_s,
    )


def take(found: Progress, message: tuple[str, Any]) -> bool:
    """Take one message in; false at the end."""
    kind, value = message
    if kind == "link":
        name, fitted = value
        found.model[name], found.residual[name] = fitted.costs, fitted.residual
    elif kind == "copy":
        found.copy_bytes_s = value
    elif kind == "trying":
        found.case, found.trying = value
    elif kind == "entry":
        index, found.entries[index] = value
    elif kind == "failed":
        reject(found, value)
        return False
    elif kind == "done":
        found.is_complete = True
        return False
    return True


def reject(found: Progress, reason: str) -> None:
    """Leave the candidate out that was being tried, in all cases still to come.

    Raises: RuntimeError when it was left out already and tried all the same: the seed's choice.
    """
    name = found.trying or "meeting of the ranks"
    if name in found.rejected:
        raise RuntimeError(
            f"{name} cannot be left out and fails: {reason}. Nothing can be measured here"
        )
    found.rejected[name] = reason
