"""Collectives of two ranks: through memory against gloo, and on a slow link against its limit.

Every way is checked with whole numbers before it is timed; ours and the peer run in turns, times
are the slowest rank's. In memory the limit is the copying that the operation needs at the rate of
a bare copy on both ranks at once; on a link it is what plain sockets carry both ways in the same
rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.collectives.crew import Crew, RankFailed, ranks_at
from benchmarks.collectives.figure import save_collective_bars
from benchmarks.collectives.rank import PLAIN
from benchmarks.collectives.rows import (
    WIRE_SHARE,
    Row,
    against,
    blank,
    judged,
    limited_by,
    rate_row,
)
from benchmarks.links.place import UNLIMITED, Place, slow_place
from benchmarks.plot import figure_path
from benchmarks.suites.links import plain_sockets
from kernels.collectives.costs import INT8_RATIO

SUITE = "collectives"
LARGE_BYTES = 8 << 20
_SIZES_BYTES = (64 << 10, 1 << 20, LARGE_BYTES)
_RATES_BYTES_S = (50e6, 100e6, 200e6, 400e6)
_TRANSPORTS = ("shm", "gloo", "tcp")
_NAMES = {64 << 10: "64 KiB", 1 << 20: "1 MiB", LARGE_BYTES: "8 MiB"}
# Acceptance of the rows at 8 MiB: at least so much of the limit, or times the peer.
AT_LEAST = {"memory": 2.0, "link": 0.9, "int8": 1.7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """An operation, ours and its peers, each the name of an algorithm and its contract."""

    op: str
    ours: tuple[str, str]
    peers: tuple[tuple[str, str], ...]
    dtype: str = "bfloat16"
    size_bytes: int = LARGE_BYTES

    @property
    def name(self) -> str:
        """The row's name without the link."""
        kind = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}[self.dtype]
        return f"{self.op} {_NAMES[self.size_bytes]} {kind}, {self.ours[0]} ({self.ours[1]})"


_LIBRARY, _EXACT_LIBRARY = ("gloo/library", "fast"), ("gloo/library", "exact")
_MEMORY_MOVES = (
    Duel(op="all_gather", ours=("shm/direct", "exact"), peers=(_EXACT_LIBRARY,)),
    Duel(op="all_to_all", ours=("shm/direct", "exact"), peers=(_EXACT_LIBRARY,)),
    Duel(op="reduce_scatter", ours=("shm/direct", "exact"), peers=(("gloo/ring", "fast"),)),
    Duel(op="broadcast", ours=("shm/direct", "exact"), peers=(_EXACT_LIBRARY,)),
)
# gloo's messages under our algorithms, and gloo's own collectives.
_LINK_DUELS = (
    Duel(op="all_reduce", ours=("tcp/ring", "fast"), peers=(("gloo/ring", "fast"), _LIBRARY)),
    Duel(
        op="all_reduce",
        ours=("tcp/pairwise", "exact"),
        peers=(("gloo/pairwise", "exact"), _LIBRARY),
    ),
    Duel(
        op="all_gather",
        ours=("tcp/ring", "exact"),
        peers=(("gloo/ring", "exact"), _EXACT_LIBRARY),
    ),
    Duel(
        op="all_to_all",
        ours=("tcp/pairwise", "exact"),
        peers=(("gloo/pairwise", "exact"), _EXACT_LIBRARY),
    ),
)
_INT8 = Duel(
    op="all_reduce",
    ours=("tcp/int8_two_shot", "int8"),
    peers=(("tcp/pairwise", "exact"),),
)


def run(quick: bool = False) -> list[Row]:
    """All rows; `quick` takes 8 MiB, one link rate and fewer rounds."""
    rows = list(_memory_rows(quick))
    with slow_place() as place:
        print(f"slow link: {place.kind}: {place.note}", flush=True)
        for rate_bytes_s in (100e6,) if quick else _RATES_BYTES_S:
            rows += _link_rows(place, rate_bytes_s, 5 if quick else 11)
    if not quick:
        print(f"saved {save_collective_bars(rows, figure_path(SUITE))}")
    return rows


def _memory_duels(quick: bool) -> Iterator[Duel]:
    for size_bytes in (LARGE_BYTES,) if quick else _SIZES_BYTES:
        for dtype in ("bfloat16", "float32"):
            ours = ("shm/two_shot", "exact")
            yield Duel(
                op="all_reduce", ours=ours, peers=(_LIBRARY,), dtype=dtype, size_bytes=size_bytes
            )
    if not quick:
        yield from _MEMORY_MOVES


def _memory_rows(quick: bool) -> Iterator[Row]:
    with ranks_at(UNLIMITED, _TRANSPORTS) as crew:
        copy_bytes_s = crew("copy_rate", num_rounds=15)[0]
        for duel in _memory_duels(quick):
            limit = copy_bytes_s / WIRE_SHARE[duel.op]
            samples = _race(crew, duel, 15 if quick else 41)
            row = _row(duel, "memory", samples, duel.size_bytes, limit)
            if duel.op == "all_reduce" and duel.size_bytes == LARGE_BYTES:
                row = judged(row, "vs_peer", AT_LEAST["memory"])
            yield row | {"link": UNLIMITED.kind, "link_note": UNLIMITED.note}
        yield _int8_alone_row(crew, copy_bytes_s, 15 if quick else 41)


def _int8_alone_row(crew: Crew, copy_bytes_s: float, num_rounds: int) -> Row:
    """The rate that computing alone would allow an int8 all-reduce: no link makes it faster.

    Encoding, settling and decoding read or write each value and each byte of a payload twice.
    """
    count = LARGE_BYTES // 2
    seconds = crew("int8_alone", dtype=_INT8.dtype, count=count, num_rounds=num_rounds)[0]
    row = blank(SUITE, f"memory: {_INT8.op} {_NAMES[LARGE_BYTES]} bf16, int8 without a wire", "B/s")
    moved_bytes = WIRE_SHARE[_INT8.op] * LARGE_BYTES
    row = rate_row(row, seconds, moved_bytes, copy_bytes_s / (1 + INT8_RATIO))
    return row | {"link": UNLIMITED.kind, "link_note": "computed by both ranks at once, not sent"}


def _link_rows(place: Place, rate_bytes_s: float, num_rounds: int) -> list[Row]:
    at = f"{rate_bytes_s / 1e6:g} MB/s"
    facts: Row = {"link": place.kind, "link_note": place.note, "rate_bytes_s": rate_bytes_s}
    rows: list[Row] = []
    with ranks_at(place, _TRANSPORTS, rate_bytes_s) as crew:
        for duel in map(partial(_slowed, place), _LINK_DUELS):
            row = _on_link(crew, place, duel, at, rate_bytes_s, num_rounds)
            rows.append(judged(row, "of_limit", AT_LEAST["link"]))
        rows.append(_int8_row(crew, place, at, rate_bytes_s, num_rounds))
    for row in rows:
        print(f"  {row['row']}: {row['ours'] / 1e6:.1f} MB/s", flush=True)
    return [row | facts for row in rows]


def _on_link(
    crew: Crew, place: Place, duel: Duel, at: str, rate_bytes_s: float, num_rounds: int
) -> Row:
    """A duel whose limit is the link: plain sockets beside it, else the rate that was set."""
    moved = round(WIRE_SHARE[duel.op] * duel.size_bytes)
    samples = _race(crew, duel, num_rounds, plain_sockets(place, moved))
    row = _row(duel, at, samples, moved, rate_bytes_s)
    if PLAIN in samples:
        row = limited_by(row, samples[duel.ours[0]], samples[PLAIN], moved)
    return row


def _slowed(place: Place, duel: Duel) -> Duel:
    """Where the limit sleeps inside the processes, gloo's own collectives would not be slowed."""
    if place.link:
        return duel
    return replace(duel, peers=tuple(peer for peer in duel.peers if peer[0] != "gloo/library"))


def _row(
    duel: Duel,
    where: str,
    samples: Mapping[str, Sequence[float]],
    moved_bytes: float,
    limit: float,
) -> Row:
    row = blank(SUITE, f"{where}: {duel.name}", "B/s")
    row = rate_row(row, samples[duel.ours[0]], moved_bytes, limit)
    return against(row, samples, duel.ours[0], [name for name, _ in duel.peers])


def _int8_row(crew: Crew, place: Place, at: str, rate_bytes_s: float, num_rounds: int) -> Row:
    """The rate is that of the bfloat16 values that it carries: above the link's own limit."""
    found = crew("error_of", way=_INT8.ours[0], dtype=_INT8.dtype, count=LARGE_BYTES // 2)
    if len({answer["digest"] for answer in found}) != 1:
        raise RankFailed(f"{_INT8.name}: ranks hold different numbers")
    row = _on_link(crew, place, _INT8, at, rate_bytes_s, num_rounds)
    # Values that take 256 bytes as bfloat16 take 132 on the wire.
    row |= {key: row[key] / INT8_RATIO for key in ("limit", "limit_best") if key in row}
    row |= {"of_limit": row["of_limit"] * INT8_RATIO}
    row |= {"error": found[0]["error"], "quality": "ranks identical"}
    return judged(row, "vs_peer", AT_LEAST["int8"])


def _race(
    crew: Crew, duel: Duel, num_rounds: int, raw: Mapping[str, object] | None = None
) -> dict[str, list[float]]:
    return crew(
        "race",
        op=duel.op,
        dtype=duel.dtype,
        size_bytes=duel.size_bytes,
        ways=[list(way) for way in (duel.ours, *duel.peers)],
        num_rounds=num_rounds,
        raw=raw,
    )[0]
