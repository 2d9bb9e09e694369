"""From samples to the rows of the result: ours, the fastest peer, the distance to the limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.llm.bounds import Bounds
from benchmarks.llm.contest import Contest
from benchmarks.llm.contestants import OURS, Contestant
from benchmarks.llm.measurements import Metric
from benchmarks.llm.statistics import percentile, ratio_of_rounds

Row = dict[str, Any]

KEYS = (
    "suite", "row", "ours", "unit", "p20", "p80", "peer", "peer_version", "vs_peer", "limit",
    "of_limit", "error", "quality", "plan_hash", "machine", "commit",
)  # fmt: skip
_ABSENT = "n/a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every row of a run says of where it comes from."""

    machine: str
    commit: str
    plan_hash: str = ""


def blank(row: str, unit: str, stamp: Stamp) -> Row:
    """A row with every key, nothing measured."""
    stamped = {"plan_hash": stamp.plan_hash, "machine": stamp.machine, "commit": stamp.commit}
    return dict.fromkeys(KEYS) | {"suite": "llm", "row": row, "unit": unit} | stamped


def with_samples(row: Row, values: Sequence[float]) -> Row:
    """The median and the spread of our values."""
    if not values:
        return row
    return row | {
        "ours": statistics.median(values),
        "p20": percentile(values, 20),
        "p80": percentile(values, 80),
        "rounds": len(values),
    }


def with_limit(row: Row, limit: float, *, higher_is_better: bool) -> Row:
    """The limit in the row's unit, and how much of it ours reaches."""
    if not row["ours"]:
        return row | {"limit": limit}
    share = row["ours"] / limit if higher_is_better else limit / row["ours"]
    return row | {"limit": limit, "of_limit": share}


def contest_rows(contest: Contest, stamp: Stamp, bounds: Bounds | None) -> list[Row]:
    """A row for each metric that anyone was measured in, and one for each further form of ours."""
    rows: list[Row] = []
    for name in contest.metrics:
        forms = [c for c in contest.contestants if c.name == OURS and not c.only]
        forms += [c for c in contest.contestants if c.name == OURS and name in c.only]
        rows += [_contest_row(contest, name, form, stamp, bounds) for form in forms]
    return rows


def _contest_row(
    contest: Contest, name: str, form: Contestant, stamp: Stamp, bounds: Bounds | None
) -> Row:
    metric = contest.metrics[name]
    ours = contest.samples.get((form.label, name), {})
    title = f"{name}, {form.form}" if form.form else name
    row = with_samples(blank(title, metric.unit, stamp), list(ours.values()))
    row["error"] = None if ours else _last_note(contest, form.label)
    row |= _against_peers(contest, metric, ours)
    row |= _agreements(contest, name, form.label)
    return row if form.form else _limited(row, name, bounds)


def _last_note(contest: Contest, label: str) -> str | None:
    notes = [note for note in contest.notes if note.startswith(f"{label}:")]
    return notes[-1] if notes else None


def _against_peers(contest: Contest, metric: Metric, ours: Mapping[int, float]) -> dict[str, Any]:
    """Every peer in its best form, and the one that ours is least ahead of."""
    peers: dict[str, dict[str, Any]] = {}
    for peer in dict.fromkeys(c.name for c in contest.contestants if c.name != OURS):
        peers[peer] = _peer(contest, peer, metric, ours)
    compared = {peer: p for peer, p in peers.items() if p.get("vs_peer") is not None}
    if not compared:
        return {"peer": _ABSENT, "peers": peers}
    closest = min(compared, key=lambda peer: compared[peer]["vs_peer"])
    found = compared[closest]
    return {
        "peer": closest,
        "peer_version": found["version"],
        "vs_peer": found["vs_peer"],
        "peers": peers,
    }


def _peer(contest: Contest, peer: str, metric: Metric, ours: Mapping[int, float]) -> dict[str, Any]:
    name, higher = metric.row, metric.higher_is_better
    forms = [c for c in contest.contestants if c.name == peer]
    measured = {c.label: contest.samples.get((c.label, name), {}) for c in forms}
    medians = {label: statistics.median(v.values()) for label, v in measured.items() if v}
    if not medians:
        absent = [c.absent for c in forms if c.absent]
        reuses = any(c.facts.get("reuses_prefixes") for c in forms)
        why = "n/a: keeps no prompts" if "prefix" in name and not reuses else "n/a: not measured"
        return {"absent": absent[0] if len(absent) == len(forms) else why}
    label = (max if higher else min)(medians, key=lambda k: medians[k])
    form = next(c for c in forms if c.label == label)
    ratio = ratio_of_rounds(ours, measured[label], higher_is_better=higher)
    return {
        "value": medians[label],
        "form": form.form,
        "version": form.facts.get("version", ""),
        "rounds": len(measured[label]),
        "vs_peer": ratio if metric.compared else None,
    }


def _agreements(contest: Contest, name: str, ours: str) -> dict[str, Any]:
    shares = {
        c.label: share
        for c in contest.contestants
        if c.name != OURS and (share := contest.agreement_of(ours, c.label, name)) is not None
    }
    if not shares:
        return {}
    exact = [share for label, share in shares.items() if label.startswith("transformers")]
    return {"agreement": shares, "quality": exact[0] if exact else None}


def _limited(row: Row, name: str, bounds: Bounds | None) -> Row:
    kind, _, number = name.partition(" ")
    if bounds is None:
        return row
    if kind == "prefill":
        length = int(number)
        row |= {"limits": bounds.prefill_by_dtype(length), "limit_dtype": bounds.linear_dtype}
        return with_limit(row, bounds.prefill_tok_s(length), higher_is_better=True)
    if name == "decode 1":
        return with_limit(row, bounds.decode_tok_s(), higher_is_better=True)
    return row
