"""The suite's picture: the staircase of each model, and overlapped runs against prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plot import OURS, save, two_panels
from benchmarks.report import commit, machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREDICTED = "#b9b4a5"

Rows = Sequence[Mapping[str, Any]]


def save_overlap_figure(rows: Rows, path: Path) -> Path:
    """Draw the rows: stages on the left, rates on the right. Returns: the path written."""
    stages = [row for row in rows if row["unit"] == "tok/s"]
    rates = [row for row in rows if row["unit"] == "x serial"]
    figure, left, right = two_panels(figsize=(15, 5.2))
    _bars(left, stages, "tokens per second over two ranks")
    left.set_xscale("log")
    _bars(right, rates, "times the serial step")
    facts = machine()
    return save(figure, f"overlap on {facts['cpu']}, torch {facts['torch']}, {commit()}", path)


def _bars(axes: Axes, rows: Rows, label: str) -> None:
    """A measured bar and a predicted one for each row, the first row on top."""
    places = [float(-i) for i in range(len(rows))]
    axes.barh([p + 0.2 for p in places], [r["ours"] for r in rows], 0.38, color=OURS)
    axes.barh([p - 0.2 for p in places], [r["limit"] for r in rows], 0.38, color=PREDICTED)
    axes.set_yticks(places, [r["row"] for r in rows], fontsize="small")
    axes.set_xlabel(f"{label}: measured above, predicted below")
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f" {row['ours']:.4g}", (row["ours"], place + 0.2), va="center", fontsize=8)
