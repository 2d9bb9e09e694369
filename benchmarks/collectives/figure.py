"""Bars of the suite `collectives`: ours against the peer, and the share of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.collectives.rows import Row
from benchmarks.plot import BAR_HEIGHT_IN, BEHIND, OURS, save, two_panels


def save_collective_bars(rows: Sequence[Row], path: Path) -> Path:
    """Draw all rows, the first one on top.

    Returns: the path written.
    """
    shown = list(rows)[::-1]
    names = [row["row"] for row in shown]
    size = (14, 1.8 + BAR_HEIGHT_IN * len(shown))
    figure, left, right = two_panels(sharey=True, figsize=size)
    ratios = [row["vs_peer"] or 0.0 for row in shown]
    left.barh(names, ratios, color=[OURS if ratio >= 1 else BEHIND for ratio in ratios])
    for place, (row, ratio) in enumerate(zip(shown, ratios, strict=True)):
        beside = f" {ratio:.2f} {row['peer']}" if row["peer"] else " no peer"
        left.annotate(beside, (ratio, place), va="center", fontsize="small")
    left.set_xlim(0, max([2.0, *ratios]) * 1.35)
    left.set_xlabel("times the peer (right of 1: ours is faster)")
    right.barh(names, [row["of_limit"] or 0.0 for row in shown], color=OURS)
    right.set_xlabel("of the measured limit")
    for axes in (left, right):
        axes.axvline(1, color="black", linewidth=0.8)
        axes.margins(y=0.01)
    first = shown[-1]
    return save(figure, f"collectives, {first['machine']}, {first['commit']}", path)
