"""Bars of the suite `llm`: ours against each peer, and the share of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.llm.rows import Row, Stamp
from benchmarks.plot import save, two_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"transformers": "#8a6d3b", "llama.cpp": "#2f6f4f", "vllm": "#3b5f8a"}
_ROW_HEIGHT_IN = 0.55


def save_llm_bars(rows: Sequence[Row], path: Path, stamp: Stamp) -> Path:
    """Draw the rows that have a peer or a limit.

    Returns: the path written.
    """
    compared = [row for row in rows if row.get("vs_peer")][::-1]
    limited = [row for row in rows if row.get("of_limit")][::-1]
    height = 1.8 + _ROW_HEIGHT_IN * max(len(compared), len(limited), 2)
    figure, left, right = two_panels(figsize=(13, height), gridspec_kw={"width_ratios": [3, 1.4]})
    _draw_peers(left, compared)
    right.barh([row["row"] for row in limited], [row["of_limit"] for row in limited], color="grey")
    right.axvline(1, color="black", linewidth=0.8)
    right.set_xlabel("of the measured limit")
    return save(figure, f"lanewise against its peers: {stamp.machine}, {stamp.commit}", path)


def _draw_peers(axes: Axes, compared: Sequence[Row]) -> None:
    """A bar per peer from 1 to the ratio, on a logarithmic axis, with its number."""
    width = 0.8 / len(COLOURS)
    for slot, (peer, colour) in enumerate(COLOURS.items()):
        for place, row in enumerate(compared):
            ratio = row.get("peers", {}).get(peer, {}).get("vs_peer")
            if ratio is None:
                continue
            at = place + 0.4 - width * (slot + 0.5)
            axes.barh(at, ratio - 1, left=1, height=width, color=colour, label=peer)
            axes.annotate(f" {ratio:.2f}", (max(ratio, 1.0), at), va="center", fontsize="x-small")
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(compared)), [row["row"] for row in compared])
    axes.set_xlabel("times the peer, median of rounds (right of 1: ours is better)")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), loc="lower right")
