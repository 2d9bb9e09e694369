"""Rows of a benchmark: one table on the terminal, one JSON beside it.

A row is a dict with at least `suite`, `row`, `ours`, `unit`; further keys are `p20, p80, peer,
peer_version, vs_peer, limit, of_limit, error, quality`. `vs_peer` above 1 means ours is better.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COLUMNS = ("row", "ours", "unit", "limit", "of_limit", "peer", "vs_peer")

Row = Mapping[str, Any]


def commit() -> str:
    """Short hash of the checkout, with `+` when it has changes; `unknown` outside a checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=10"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.stdout.strip() or "unknown"


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {
        "cpu": model,
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def shown(value: object) -> str:
    """A cell of the table."""
    if value is None or value == "":
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_table(rows: Sequence[Row]) -> None:
    """Print the columns that any row fills."""
    columns = [c for c in COLUMNS if any(r.get(c) not in (None, "") for r in rows)]
    cells = [columns, *([shown(r.get(c)) for c in columns] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def save_json(
    suite: str,
    rows: Sequence[Row],
    path: Path | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write rows and machine, and `more` beside them; the name says suite, device and day.

    Returns: the path written.
    """
    facts = machine()
    device = "cpu" if facts["gpu"] == "none" else facts["gpu"].replace(" ", "-").lower()
    path = path or RESULTS / f"{suite}_{device}_{datetime.now(UTC):%Y%m%d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "suite": suite,
        "machine": facts,
        "commit": commit(),
        **(more or {}),
        "rows": [dict(r) for r in rows],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path
