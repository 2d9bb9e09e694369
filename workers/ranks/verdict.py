"""What is found to be wrong with a rank, in words that an operator can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["dead", "failed", "stalled", "disagreed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which rank, what it was doing, and how long against how long was expected.

    dead: its process is gone; failed: it said why before it ended; stalled: it is alive and has
    stopped advancing; disagreed: an exchange found it elsewhere than the others. Units: seconds.
    """

    rank: int
    pid: int
    epoch: int
    kind: Kind
    doing: str
    elapsed_s: float
    bound_s: float | None = None
    expected_s: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        """One line."""
        text = f"rank {self.rank} (process {self.pid}) of epoch {self.epoch} {self._what}"
        text += f" while {self.doing}, after {self.elapsed_s:.1f} s without progress"
        if self.bound_s is not None:
            expected = "no prediction"
            if self.expected_s is not None:
                expected = f"expected {self.expected_s:.3f} s"
            text += f" ({expected}, bound {self.bound_s:.1f} s)"
        return f"{text}: {self.detail}" if self.detail else text

    @property
    def _what(self) -> str:
        return {
            "dead": "died",
            "failed": "failed",
            "stalled": "stalled",
            "disagreed": "did not agree with the others",
        }[self.kind]
