"""What the tuner found: the table before and after, and the choices that were timed again."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from kernels.collectives.topology import Topology
from kernels.collectives.tuning.place import Found
from kernels.collectives.tuning.recheck import Rechecked


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What there was, what there is now, and the choices that were timed again."""

    here: Topology
    num_ranks: int
    before: Found
    after: Found
    rechecked: tuple[Rechecked, ...] = ()
    problem: str = ""

    @property
    def drifted(self) -> tuple[Rechecked, ...]:
        """Choices that take longer than the table says."""
        return tuple(checked for checked in self.rechecked if checked.has_drifted)

    @property
    def holds(self) -> bool:
        """Whether ranks can rely on the table."""
        return self.after.state == "fresh" and not self.drifted and not self.problem

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        table = self.after.table
        return {
            "fingerprint": self.here.fingerprint,
            "num_ranks": self.num_ranks,
            "before": _plain(self.before),
            "after": _plain(self.after),
            "problem": self.problem,
            "rechecked": [
                {
                    "op": r.entry.op,
                    "contract": r.entry.contract,
                    "bytes": r.entry.bytes,
                    "choice": r.entry.choice,
                    "table_us": r.entry.us.p50,
                    "now_us": r.now_us,
                    "has_drifted": r.has_drifted,
                }
                for r in self.rechecked
            ],
            "table": asdict(table) if table else None,
        }


def _plain(found: Found) -> dict[str, str]:
    return {
        "state": found.state,
        "path": os.fspath(found.path),
        "reason": found.reason,
        "remedy": found.remedy,
    }
