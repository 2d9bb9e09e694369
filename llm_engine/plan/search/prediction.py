"""What a step is predicted to take: the types that the planner hands on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels.cost_model.parts import Parts

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """One step. Units: tokens of all sequences (`rows`), tokens before its end (`context`).

    `batch` sequences share out the rows evenly; each has that context.
    """

    phase: str
    rows: int
    context: int
    batch: int = 1


def exposed_parts(parts: Parts, hidden_s: float) -> Parts:
    """What the errors of a step's time come from: a hidden side may err without being seen."""
    if not hidden_s:
        return parts
    if parts.wire < parts.compute_s:
        return replace(parts, wire=max(0.0, parts.wire - hidden_s))
    share = max(0.0, 1 - hidden_s / parts.compute_s)
    computed = Parts(gemm=parts.gemm, attention=parts.attention, memory=parts.memory) * share
    return computed + Parts(wire=parts.wire, latency=parts.latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """One step under one layout.

    Units: seconds. `seconds` is from one step's end to the next's in a steady state; `fill_s` what
    the first one takes more (a pipeline's other stages). `parts` are before `hidden_s` is taken
    off: transfers under computation less what cutting costs. `low_s` to `high_s` is the interval
    of the stated errors. `sent_bytes` leave each rank.
    """

    layout: Layout
    size: StepSize
    seconds: float
    fill_s: float
    low_s: float
    high_s: float
    parts: Parts
    hidden_s: float
    sent_bytes: float
    reasons: tuple[str, ...] = ()

    @property
    def exposed(self) -> Parts:
        """The parts without what is hidden: the shorter of transfers and computation."""
        return exposed_parts(self.parts, self.hidden_s)

    @property
    def binds(self) -> str:
        """The cause that takes most."""
        return self.parts.binds

    @property
    def rows_s(self) -> float:
        """Rows a second on all replicas."""
        return self.layout.replicas * self.size.rows / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "layout": {**asdict(self.layout), "text": str(self.layout)},
            "size": asdict(self.size),
            "seconds": self.seconds,
            "fill_s": self.fill_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "parts_s": self.parts.as_dict(),
            "hidden_s": self.hidden_s,
            "sent_bytes": self.sent_bytes,
            "rows_per_s": self.rows_s,
            "binds": self.binds,
            "reasons": list(self.reasons),
        }
