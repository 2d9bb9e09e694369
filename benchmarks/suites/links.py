"""Slow links between two ranks: what plain sockets reach, and what our transports make of it.

Two namespaces joined by virtual devices under a token bucket; where they are not allowed, a limit
inside the processes, which only our own messages keep to.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.collectives.crew import Crew, ranks_at
from benchmarks.collectives.rank import PLAIN
from benchmarks.collectives.rows import Row, against, blank, limited_by, rate_row
from benchmarks.links.place import Place, slow_place

RATES_BYTES_S = (25e6, 100e6, 200e6, 400e6)
_QUICK_RATES_BYTES_S = (100e6,)
SIZE_BYTES = 8 << 20
OURS, PEER = "tcp/pairwise", "gloo/pairwise"
_TRANSPORTS = ("shm", "gloo", "tcp")


def run(quick: bool = False) -> list[Row]:
    """Rows of every rate."""
    rows: list[Row] = []
    with slow_place() as place:
        print(f"link: {place.kind}: {place.note}", flush=True)
        for rate_bytes_s in _QUICK_RATES_BYTES_S if quick else RATES_BYTES_S:
            with ranks_at(place, _TRANSPORTS, rate_bytes_s) as crew:
                rows += _rows(crew, place, rate_bytes_s, 3 if quick else 7)
    return rows


def plain_sockets(place: Place, num_bytes: int) -> dict[str, object] | None:
    """What a race is told to run plain sockets beside it; None where there is no kernel link."""
    if place.link is None:
        return None
    return {"address": place.link.address(0), "num_bytes": num_bytes}


def _rows(crew: Crew, place: Place, rate_bytes_s: float, num_rounds: int) -> list[Row]:
    facts: dict[str, Any] = {
        "link": place.kind,
        "link_note": place.note,
        "rate_bytes_s": rate_bytes_s,
    }
    at = f"{rate_bytes_s / 1e6:g} MB/s"
    raw = plain_sockets(place, SIZE_BYTES)
    rows = [] if raw is None else _plain_rows(crew, raw, at, rate_bytes_s, num_rounds)
    samples = crew(
        "race",
        op="all_to_all",
        dtype="bfloat16",
        size_bytes=2 * SIZE_BYTES,
        ways=[[OURS, "exact"], [PEER, "exact"]],
        num_rounds=num_rounds,
        raw=raw,
    )[0]
    row = blank("links", f"{at}: swap of 8 MiB, tcp", "B/s")
    row = rate_row(row, samples[OURS], SIZE_BYTES, rate_bytes_s)
    if PLAIN in samples:
        row = limited_by(row, samples[OURS], samples[PLAIN], SIZE_BYTES)
    return [row | facts for row in (*rows, against(row, samples, OURS, [PEER]))]


def _plain_rows(
    crew: Crew, raw: Mapping[str, object], at: str, rate_bytes_s: float, num_rounds: int
) -> list[Row]:
    """The sockets themselves against the rate that was set."""
    found = crew("raw_link", **raw, num_rounds=num_rounds)[0]
    both = blank("links", f"{at}: plain sockets, both ways", "B/s")
    trip = blank("links", f"{at}: round trip of 8 bytes", "us")
    return [
        rate_row(both, found["both_ways_s"], SIZE_BYTES, rate_bytes_s),
        trip | {"ours": statistics.median(found["round_trip_s"]) * 1e6},
    ]
