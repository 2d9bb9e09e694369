"""Bars of the suite `kernels`: the ratio to the peer, and the share of the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plot import BAR_HEIGHT_IN, BEHIND, OURS, save, two_panels
from benchmarks.report import commit, machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_kernel_bars(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the timed rows; one without a peer shows its tier and its share of the limit.

    Returns: the path written.
    """
    timed = [row for row in rows if row.get("of_limit") is not None][::-1]
    size = (13, 1.6 + BAR_HEIGHT_IN * max(len(timed), 1))
    figure, left, right = two_panels(sharey=True, figsize=size)
    names = [row["row"] for row in timed]
    _draw_ratios(left, names, timed)
    right.barh(names, [row["of_limit"] for row in timed], color=OURS)
    right.axvline(1, color="black", linewidth=0.8)
    right.set_xlabel("of the measured limit")
    facts = machine()
    device = f"{facts['cpu']}, {facts['threads']} thread(s)"
    device = device if facts["gpu"] == "none" else facts["gpu"]
    return save(figure, f"kernels on {device}, torch {facts['torch']}, {commit()}", path)


def _draw_ratios(axes: Axes, names: Sequence[str], timed: Sequence[Mapping[str, Any]]) -> None:
    """Bars from 1 to the ratio, on a logarithmic axis, each with its number and its peer."""
    ratios = [row.get("vs_peer") or 1.0 for row in timed]
    colours = [OURS if ratio >= 1 else BEHIND for ratio in ratios]
    axes.set_xscale("log")
    axes.barh(names, [ratio - 1 for ratio in ratios], left=1, color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlim(min([0.5, *ratios]) * 0.8, max([2.0, *ratios]) * 5)
    axes.set_xlabel("times the fastest peer (right of 1: ours is faster)")
    axes.margins(y=0.01)
    for place, (row, ratio) in enumerate(zip(timed, ratios, strict=True)):
        text = f" {ratio:.2f} {row['peer']}" if row.get("vs_peer") else f" {row['tier']}, no peer"
        axes.annotate(text, (max(ratio, 1.0), place), va="center", fontsize="small")
