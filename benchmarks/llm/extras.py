"""Rows beside the rounds: load time, peak memory, and ten thousand short requests."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

from benchmarks.llm.contest import Contest, say
from benchmarks.llm.contestants import Setting, our_contestant
from benchmarks.llm.measurements import Metric
from benchmarks.llm.process import EngineAbsent, EngineFailed
from benchmarks.llm.rows import Row, Stamp, blank
from benchmarks.llm.workload import Prose

_MIB = 1 << 20
_STEADY_LIMIT_S = 420.0
_WINDOW = 64
# A small cache is full, and evicts, long before the end.
_STEADY_ENGINE = {"max_num_seqs": 8, "kv_cache_bytes": 64 * _MIB, "max_model_len": 512}


def note_loads_and_memory(contest: Contest) -> None:
    """Take load times and peak resident memory of everyone who runs as samples of round 0."""
    for contestant in contest.contestants:
        if contestant.absent or contestant.only or "load_s" not in contestant.facts:
            continue
        contest.metrics["load time"] = _metric("load time", "s")
        contest.samples[contestant.label, "load time"][0] = contestant.facts["load_s"]
        try:
            peak = contestant.ask("memory", timeout_s=30.0)["peak_bytes"]
        except (EngineAbsent, EngineFailed) as error:
            contest.notes.append(f"{contestant.label}: memory: {error}")
            continue
        contest.metrics["peak memory"] = _metric("peak memory", "MiB")
        contest.samples[contestant.label, "peak memory"][0] = peak / _MIB


def _metric(row: str, unit: str) -> Metric:
    """A figure that comes from no answer; less is better."""
    return Metric(row=row, unit=unit, higher_is_better=False, of=lambda _: math.nan)


def steady_rows(setting: Setting, prose: Prose, stamp: Stamp, *, quick: bool) -> list[Row]:
    """Growth of resident memory after the first tenth, and the last tenth's steps to the first's.

    Limits: 5 % of resident memory; a ratio of 1.1.
    """
    count = 600 if quick else 10_000
    draw = random.Random("steady")
    requests = [[draw.choices(prose.token_ids, k=4), 2, 0.0] for _ in range(count)]
    engine = our_contestant(setting, "steady", **_STEADY_ENGINE)
    say(f"steady: {count} short requests")
    memory_row = blank(f"steady memory, {count} requests", "MiB", stamp)
    steps_row = blank(f"steady step, last ÷ first tenth of {count}", "×", stamp)
    try:
        found = engine.ask(
            "steady", timeout_s=_STEADY_LIMIT_S, requests=requests, window=_WINDOW,
            head=count // 10,
        )  # fmt: skip
    except (EngineAbsent, EngineFailed) as error:
        say(f"  steady: {error}")
        return [memory_row | {"error": str(error)}, steps_row | {"error": str(error)}]
    finally:
        engine.stop()
    return [
        _growth(memory_row, found["rss_bytes"]),
        steps_row | _step_ratio(found["steps_s"]) | {"limit": 1.1},
    ]


def _growth(row: Row, rss_bytes: Sequence[int]) -> Row:
    series = [round(rss / _MIB, 1) for rss in rss_bytes]
    return row | {
        "ours": (rss_bytes[-1] - rss_bytes[0]) / _MIB,
        "limit": 0.05 * rss_bytes[0] / _MIB,
        "rss_mib": series,
    }


def _step_ratio(steps_s: Sequence[float]) -> Row:
    tenth = max(len(steps_s) // 10, 1)
    first, last = statistics.median(steps_s[:tenth]), statistics.median(steps_s[-tenth:])
    return {"ours": last / first, "first_ms": 1e3 * first, "last_ms": 1e3 * last}
