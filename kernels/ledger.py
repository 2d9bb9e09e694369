"""Every choice with its reasons: Decision and Ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kernels.errors import StrictRefusal
from kernels.spec import Tier

Source = Literal["explicit", "tuned", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was passed over, with every requirement it did not meet."""

    candidate: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One choice: what was asked, what was taken, and why nothing else was.

    `where` is the layer or phase ("layers 3-60 attention, decode"); `what` the op or mechanism;
    `case` the shape it was decided for. `remedy` says what would lift it to a better tier.
    """

    kind: Literal[
        "kernel",
        "collective",
        "graph",
        "page",
        "layout",
        "cache",
        "wire",
        "memory",
        "speculation",
        "grammar",
        "chat",
    ]
    where: str
    what: str
    asked: str
    chosen: str
    tier: Tier
    source: Source
    case: str = ""
    reasons: tuple[str, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    evidence: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Ledger:
    """The decisions of one process or one plan, in the order they were made.

    Invariants: append-only; safe to append from several threads; the same decision twice is kept
    once.
    """

    def __init__(self) -> None:
        self._decisions: dict[Decision, None] = {}
        self._lock = threading.Lock()

    def record(self, decision: Decision) -> Decision:
        """Append and return the decision."""
        with self._lock:
            self._decisions.setdefault(decision)
        return decision

    def __iter__(self) -> Iterator[Decision]:
        """The decisions so far."""
        with self._lock:
            return iter(tuple(self._decisions))

    def __len__(self) -> int:
        """How many decisions there are."""
        return len(self._decisions)

    def below(self, floor: Tier) -> tuple[Decision, ...]:
        """Decisions that do not reach the tier."""
        return tuple(d for d in self if not d.tier.reaches(floor))

    def require(self, floor: Tier) -> None:
        """Refuse when any decision lies below `floor`.

        Raises:
            StrictRefusal: one line for each, with layer, reason and remedy.
        """
        low = self.below(floor)
        if low:
            raise StrictRefusal("\n".join(refusal_line(decision, floor) for decision in low))


def refusal_line(decision: Decision, floor: Tier) -> str:
    """Layer, reason and remedy of a decision below the floor."""
    passed_over = "; ".join(f"{r.candidate}: {', '.join(r.reasons)}" for r in decision.rejected)
    reason = passed_over or ", ".join(decision.reasons) or "no better implementation exists"
    remedy = decision.remedy or "none known: lower the floor or use another machine"
    return (
        f"{decision.where}: {decision.what} runs on {decision.chosen} ({decision.tier}, below "
        f"{floor}). Reason: {reason}. Remedy: {remedy}."
    )
