"""What the figures of all suites share: where they lie, their colours, opening and saving."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import RESULTS, machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, BEHIND = "#2f6f4f", "#b5523b"
BAR_HEIGHT_IN = 0.26


def figure_path(suite: str) -> Path:
    """Beside the suite's JSON, under the same name."""
    facts = machine()
    device = "cpu" if facts["gpu"] == "none" else facts["gpu"].replace(" ", "-").lower()
    return RESULTS / f"{suite}_{device}_{datetime.now(UTC):%Y%m%d}.png"


def two_panels(**layout: Any) -> tuple[Figure, Axes, Axes]:  # noqa: ANN401 - matplotlib's own
    """A figure with two panels side by side; `layout` goes to `pyplot.subplots`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, **layout)
    return figure, left, right


def save(figure: Figure, title: str, path: Path) -> Path:
    """Write a figure under its title, and let go of it. Returns: the path written."""
    from matplotlib import pyplot

    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
