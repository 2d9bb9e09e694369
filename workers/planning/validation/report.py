"""What a validation found: errors, whether plans are ranked rightly, and what a choice costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from kernels.calibration.drift import MOST_DRIFT
from kernels.calibration.table import BUSY_RATIO

MOST_ERROR = 0.15
MOST_REGRET = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan at one link rate. Units: seconds; bytes a second; shares (0.1: ten per cent).

    `predicted_core_s` and `measured_core_s` are the computing in it, by the time that the busier
    rank's core gave it: other programs do not lengthen that, so it tells an error of computing
    from one of exchanges and waiting. `measured_s` is the median of `num_runs` runs, `spread` how
    far they lie apart without the least and the greatest, `disturbed` the processors' share that
    other programs had meanwhile, `order` what was wrong with the order of events, empty where it
    was virtual time's.
    """

    group: str
    plan: str
    rate_bytes_s: float
    predicted_s: float
    measured_s: float
    predicted_core_s: float
    measured_core_s: float
    spread: float
    num_runs: int
    disturbed: float
    order: str

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan that predictions choose among those of one toy and rate, and what it costs."""

    group: str
    rate_bytes_s: float
    chosen: str
    best: str
    regret: float
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows, and the gates: median error, mean regret, and the order of every run.

    `load` is the machine's load before the first run, `drift` how much slower it computed then
    than its calibration says.
    """

    rows: tuple[Row, ...]
    machine: str
    calibrated: str
    calibration_disturbed: float
    load: float
    drift: float
    made: str
    duration_s: float

    @property
    def errors(self) -> list[float]:
        """Sizes of the errors, smallest first."""
        return sorted(abs(row.error) for row in self.rows)

    @property
    def median_error(self) -> float:
        """The gate's error."""
        return statistics.median(self.errors)

    @property
    def mean_error(self) -> float:
        """MAPE."""
        return statistics.fmean(self.errors)

    @property
    def median_core_error(self) -> float:
        """The median error of the computing alone; no gate."""
        return statistics.median(
            abs(row.predicted_core_s / row.measured_core_s - 1) for row in self.rows
        )

    @property
    def choices(self) -> tuple[Choice, ...]:
        """One for each toy and rate."""
        groups = dict.fromkeys((row.group, row.rate_bytes_s) for row in self.rows)
        return tuple(
            _choice([r for r in self.rows if (r.group, r.rate_bytes_s) == g]) for g in groups
        )

    @property
    def regret(self) -> float:
        """The mean over toys and rates of what following the predictions costs."""
        return statistics.fmean(choice.regret for choice in self.choices)

    @property
    def median_regret(self) -> float:
        """That of the choice in the middle."""
        return statistics.median(choice.regret for choice in self.choices)

    @property
    def worst_regret(self) -> float:
        """That of the worst choice."""
        return max(choice.regret for choice in self.choices)

    @property
    def agreement(self) -> float:
        """The mean share of pairs of plans that predictions rank as measurements do."""
        return statistics.fmean(choice.agreement for choice in self.choices)

    @property
    def disturbed(self) -> float:
        """The median share of the processors that other programs had during the runs that count."""
        return statistics.median(row.disturbed for row in self.rows)

    @property
    def failures(self) -> tuple[str, ...]:
        """What keeps the gates shut, naming rows; empty when they hold."""
        found = [f"order: {row.order}" for row in self.rows if row.order]
        if self.median_error > MOST_ERROR:
            worst = sorted(self.rows, key=lambda row: -abs(row.error))
            found.append(f"median error {self.median_error:.1%} is above {MOST_ERROR:.0%}")
            found += [
                f"{row.plan} at {row.rate_bytes_s / 1e6:.0f} MB/s: {row.error:+.0%}"
                for row in worst
                if abs(row.error) > MOST_ERROR
            ]
        if self.regret > MOST_REGRET:
            found.append(f"mean regret {self.regret:.1%} is above {MOST_REGRET:.0%}")
            found += [
                f"{c.group} at {c.rate_bytes_s / 1e6:.0f} MB/s: chose {c.chosen}, {c.regret:.0%} "
                f"slower than {c.best}"
                for c in self.choices
                if c.regret > MOST_REGRET
            ]
        if found and abs(self.drift) > MOST_DRIFT:
            found.append(
                f"products take {self.drift:+.0%} against the calibration of {self.calibrated}: "
                "the machine has changed its speed, give --calibrate as well"
            )
        if found and not self.is_quiet:
            found.append(f"{self.busy}: repeat on a quiet machine")
        return tuple(found)

    @property
    def is_quiet(self) -> bool:
        """Whether other programs left the machine to the runs and to the calibration."""
        return max(self.disturbed, self.calibration_disturbed) <= BUSY_RATIO

    @property
    def busy(self) -> str:
        """What other programs had, in words."""
        return (
            f"other programs had {self.disturbed:.0%} of the processors during the runs and "
            f"{self.calibration_disturbed:.0%} during calibration, load {self.load:.1f} before"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with what follows from the rows."""
        return {
            **asdict(self),
            "rows": [{**asdict(row), "error": row.error} for row in self.rows],
            "choices": [asdict(choice) for choice in self.choices],
            "median_error": self.median_error,
            "mean_error": self.mean_error,
            "median_core_error": self.median_core_error,
            "regret": self.regret,
            "median_regret": self.median_regret,
            "worst_regret": self.worst_regret,
            "agreement": self.agreement,
            "disturbed": self.disturbed,
            "is_quiet": self.is_quiet,
            "gates": {"order": "exact", "median_error": MOST_ERROR, "mean_regret": MOST_REGRET},
            "failures": list(self.failures),
        }


def _choice(rows: Sequence[Row]) -> Choice:
    chosen = min(rows, key=lambda row: row.predicted_s)
    best = min(rows, key=lambda row: row.measured_s)
    pairs = list(combinations(rows, 2))
    agreeing = [(a.predicted_s < b.predicted_s) == (a.measured_s < b.measured_s) for a, b in pairs]
    return Choice(
        group=chosen.group,
        rate_bytes_s=chosen.rate_bytes_s,
        chosen=chosen.plan,
        best=best.plan,
        regret=chosen.measured_s / best.measured_s - 1,
        agreement=statistics.fmean(agreeing) if agreeing else 1.0,
    )
