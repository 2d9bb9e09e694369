"""A calibration and a validation as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernels.calibration.in_steps import COMPUTING_UNITS, MEETING_UNITS, InSteps
from kernels.calibration.work import UNITS
from workers.planning.plan_tables import console, print_table

if TYPE_CHECKING:
    from kernels.calibration.table import Calibration
    from workers.planning.validation.report import Report


def print_calibration(calibration: Calibration, path: Path) -> None:
    """Constants with their errors, and where they lie."""
    rows = [
        (
            kind,
            ", ".join(
                f"{constant:.3g} s a {unit}"
                for constant, unit in zip(fit.constants, UNITS[kind], strict=True)
                if constant
            ),
            f"{fit.error:.1%}",
            str(fit.num_samples),
        )
        for kind, fit in calibration.computing.items()
    ]
    header = ("work", "constants", "error left out", "sizes")
    print_table("computing, two ranks of one thread each", header, rows)
    rows = [
        (
            name,
            _line(calibration.wire[name].constants),
            _line(calibration.wire_busy[name].constants),
            _line(calibration.computing_lost[name].constants),
            f"{calibration.wire[name].error:.1%}",
        )
        for name in calibration.wire
    ]
    header = ("collective", "beyond the link", "while computing", "computing loses", "error")
    print_table("talking", header, rows)
    rates = ", ".join(f"{rate / 1e6:.0f}" for rate in calibration.seen_bytes_s)
    _print_steps(calibration.in_steps)
    _print_lines(
        f"measured in {calibration.duration_s:.0f} s at links of {rates} MB/s; rounds of computing "
        f"lay {calibration.spread:.0%} apart; other programs had {calibration.disturbed:.0%} of "
        f"the processors, load {calibration.load:.1f} before",
        "quiet enough" if calibration.is_quiet else "busy: repeat on a quiet machine",
        f"written to {path}",
    )


def _print_steps(in_steps: InSteps) -> None:
    rows = [
        (
            name,
            ", ".join(f"{c:.3g} s a {unit}" for c, unit in zip(fit.constants, units, strict=True)),
            f"{fit.error:.1%}",
            str(fit.num_samples),
        )
        for name, fit, units in (
            ("computing", in_steps.computing, COMPUTING_UNITS),
            ("meeting", in_steps.meeting, MEETING_UNITS),
        )
    ]
    header = ("piece of a step", "constants", "error of steps left out", "pieces")
    print_table("inside whole steps", header, rows)


def print_validation(report: Report) -> None:
    """Every plan at every rate, what was chosen, and the gates."""
    rows = [
        (
            row.plan,
            f"{row.rate_bytes_s / 1e6:.0f} MB/s",
            f"{row.predicted_s * 1e3:.1f}",
            f"{row.measured_s * 1e3:.1f}",
            f"{row.error:+.0%}",
            f"{row.predicted_core_s / row.measured_core_s - 1:+.0%}",
            f"{row.spread:.0%}",
            f"{row.disturbed:.0%}",
            row.order or "exact",
        )
        for row in report.rows
    ]
    header = (
        "plan",
        "link",
        "predicted ms",
        "measured ms",
        "error",
        "computing",
        "spread",
        "others",
        "order",
    )
    print_table("steps that were not measured before", header, rows)
    choices = [
        (
            choice.group,
            f"{choice.rate_bytes_s / 1e6:.0f} MB/s",
            choice.chosen,
            choice.best,
            f"{choice.regret:.1%}",
            f"{choice.agreement:.0%}",
        )
        for choice in report.choices
    ]
    header = ("toy", "link", "chosen by prediction", "fastest measured", "regret", "agreement")
    print_table("choices", header, choices)
    _print_lines(
        f"median error {report.median_error:.1%} (computing alone "
        f"{report.median_core_error:.1%}), MAPE {report.mean_error:.1%}, rank agreement "
        f"{report.agreement:.0%}",
        f"regret: mean {report.regret:.1%}, median {report.median_regret:.1%}, worst "
        f"{report.worst_regret:.1%}",
        f"{report.busy}; calibrated {report.calibrated}, products take {report.drift:+.0%} since",
        *(() if report.is_quiet else ("busy: figures are those of other programs as well",)),
        "gates hold" if not report.failures else "gates fail",
    )


def _line(constants: tuple[float, ...]) -> str:
    start_s, per_byte_s = constants
    return f"{start_s * 1e6:.0f} us + {per_byte_s * 1e9:.2f} ns/B"


def _print_lines(*lines: str) -> None:
    out = console()
    for line in lines:
        out.print(line, markup=False)
