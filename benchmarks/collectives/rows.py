"""From samples of a race to a row: ours, the peer round by round, and the share of the limit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.collectives.crew import SIZE
from benchmarks.llm.rows import KEYS
from benchmarks.report import commit, machine
from benchmarks.timing import median_ratio, spread

Row = dict[str, Any]
# What leaves a rank for every byte of an operation's size, and comes back at the same time.
WIRE_SHARE = {
    "all_reduce": 2 * (SIZE - 1) / SIZE,
    "reduce_scatter": (SIZE - 1) / SIZE,
    "all_gather": (SIZE - 1) / SIZE,
    "all_to_all": (SIZE - 1) / SIZE,
    "broadcast": 1.0,
}


def blank(suite: str, row: str, unit: str) -> Row:
    """A row with every key, its machine and the load while it was measured."""
    facts = machine()
    return dict.fromkeys(KEYS) | {
        "suite": suite,
        "row": row,
        "unit": unit,
        "machine": f"{facts['cpu']}, {SIZE} ranks of 1 thread",
        "commit": commit(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def rate_row(row: Row, seconds: Sequence[float], moved_bytes: float, limit: float | None) -> Row:
    """Rates in bytes a second; `limit` too."""
    times = spread(seconds)
    ours = moved_bytes / times.p50
    return row | {
        "ours": ours,
        "p20": moved_bytes / times.p80,
        "p80": moved_bytes / times.p20,
        "rounds": len(seconds),
        "limit": limit,
        "of_limit": ours / limit if limit else None,
    }


def limited_by(
    row: Row, ours_s: Sequence[float], plain_s: Sequence[float], moved_bytes: float
) -> Row:
    """The limit that plain sockets reached in the same rounds, and our share of it in each."""
    limit = moved_bytes / spread(plain_s).p50
    best = moved_bytes / min(plain_s)
    return row | {"limit": limit, "of_limit": median_ratio(plain_s, ours_s), "limit_best": best}


def against(
    row: Row, samples: Mapping[str, Sequence[float]], ours: str, peers: Sequence[str]
) -> Row:
    """The peer that ours is least ahead of; all of them in `peers`, by the median of the rounds."""
    ratios = {peer: median_ratio(samples[peer], samples[ours]) for peer in peers}
    closest = min(ratios, key=lambda peer: ratios[peer])
    version = f"torch {torch.__version__}" if closest.startswith("gloo") else "lanewise"
    found = {"peer": closest, "peer_version": version, "vs_peer": ratios[closest]}
    return row | found | {"peers": ratios}


def judged(row: Row, key: str, at_least: float) -> Row:
    """Whether a figure of the row reaches what it is held to."""
    return row | {"held_to": f"{key} >= {at_least:g}", "passed": row[key] >= at_least}
