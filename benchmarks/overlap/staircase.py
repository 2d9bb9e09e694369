"""The staged run: generic kernels and blocking TP, fused kernels, then all that the engine has.

The scaled-down counterpart of a published staircase, 1,932 to 5,850 to 13,274 tokens per second.
The rule for the link's rate, stated before anything runs: the base spends the share of its time on
the wire that the published base is thought to. Its 518 us a token fit 1,233 KB a token and rank
(tensor parallelism over 8 ranks, bfloat16) at 3.5 GB/s, the middle of what such machines reach
without peer-to-peer: 352 us, 0.68 of it. What the publication's machine was is not known.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.overlap.measure import SIZE, Measurement, StageRun
from benchmarks.overlap.rates import SERIAL, overlapped
from benchmarks.overlap.stages import GENERIC_SDPA, LEVELS, Stage, staircase
from llm_engine.parallel.overlap_choice import CHUNKS, choose_overlap

PUBLISHED_TOKENS_S = (1932.0, 5850.0, 13274.0)
BASE_WIRE_SHARE = 1233e3 / 3.5e9 / (1 / PUBLISHED_TOKENS_S[0])
GOAL = PUBLISHED_TOKENS_S[-1] / PUBLISHED_TOKENS_S[0]

Row = dict[str, Any]


def measure_staircase(name: str, at: Measurement, say: Callable[[str], None]) -> list[Row]:
    """A row for each stage, and one for the whole. Raises: WrongBits."""
    rate = _meet_by_rule(name, at, staircase(1)[0], say)
    costs = at.step_costs([SERIAL, *(overlapped(k) for k in CHUNKS)])
    num_chunks, decision = choose_overlap(at.sizes.num_tokens, costs, f"{name}, prefill")
    runs = at.rounds(staircase(num_chunks), say)
    for run in runs:
        if run.stage.is_overlapped:
            at.check_bits(run)
    rows = [_stage_row(name, at, runs, place) for place in range(len(runs))]
    for row in rows:
        times = f"computes {row['compute_s']:.3f} s, {row['wire_s']:.3f} s on the wire"
        say(f"{row['row']}: {times}, bound by {row['bound_by']}")
    whole = _factor(runs[LEVELS["generic"]], runs[LEVELS["all"]])
    exact = [run for run in runs if run.stage.contract == "exact"]
    total = {
        "suite": "overlap",
        "row": f"{name}, staircase: all over generic",
        "ours": whole,
        "unit": "x",
        "limit": GOAL,
        "of_limit": whole / GOAL,
        "ours_of_least_times": min(runs[0].seconds) / min(runs[-1].seconds),
        "rate_bytes_s": rate,
        "base_wire_share_rule": BASE_WIRE_SHARE,
        "base_wire_share": rows[0]["wire_s"] / runs[0].median_s,
        "levels": {
            "kernels": _factor(runs[0], runs[LEVELS["kernels"]]),
            "overlap, layout and wire": _factor(runs[LEVELS["kernels"]], runs[-1]),
        },
        "published_levels": [
            PUBLISHED_TOKENS_S[1] / PUBLISHED_TOKENS_S[0],
            PUBLISHED_TOKENS_S[2] / PUBLISHED_TOKENS_S[1],
        ],
        "exact_stages_alone": _factor(runs[0], exact[-1]),
        "predicted": _predicted_s(at, runs[0]) / _predicted_s(at, runs[-1]),
        "gate": decision.chosen,
        "gate_reasons": list(decision.reasons),
        "link": "in-process limit of each message",
    }
    return [*rows, total, _beside(name, at, runs[-1].stage, say)]


def _beside(name: str, at: Measurement, last: Stage, say: Callable[[str], None]) -> Row:
    """The last stage over a base that has torch's fused attention, by the same rule of the link.

    Less of that base is computation, so its link is faster and there is less to win.
    """
    rate = _meet_by_rule(name, at, GENERIC_SDPA, say)
    base, best = at.rounds([GENERIC_SDPA, last], say)
    gain, predicted = _factor(base, best), _predicted_s(at, base) / _predicted_s(at, best)
    return {
        "suite": "overlap",
        "row": f"{name}, beside it: last stage over generic with torch's fused attention",
        "ours": gain,
        "unit": "x",
        "limit": predicted,
        "of_limit": gain / predicted,
        "rate_bytes_s": rate,
        "seconds": best.median_s,
        "base_s": base.median_s,
        "error": best.result["error"],
        "stretch_of_computation": statistics.median(best.stretch),
    }


def _meet_by_rule(name: str, at: Measurement, base: Stage, say: Callable[[str], None]) -> float:
    """Limit the link so that the base spends `BASE_WIRE_SHARE` on it; the rate."""
    at.meet(float("inf"))
    base_s = at.computation_s(base)
    rate = at.rate_for(base_s * BASE_WIRE_SHARE / (1 - BASE_WIRE_SHARE))
    say(f"{name}: {base.name} computes {base_s:.2f} s, so the link is {rate / 1e6:.1f} MB/s")
    at.meet(rate)
    return rate


def _predicted_s(at: Measurement, run: StageRun) -> float:
    return at.predicted(run.stage).duration_s


def _factor(slow: StageRun, fast: StageRun) -> float:
    """Median over the rounds of one's time over the other's."""
    pairs = zip(slow.seconds, fast.seconds, strict=True)
    return statistics.median(s / f for s, f in pairs)


def _stage_row(name: str, at: Measurement, runs: Sequence[StageRun], place: int) -> Row:
    run = runs[place]
    timeline = at.predicted(run.stage)
    predicted_s = timeline.duration_s
    compute_s = max(timeline.busy_s(rank) for rank in range(SIZE))
    wire_s = timeline.busy_s(0, ("collective",))
    before = runs[place - 1] if place else None
    return {
        "suite": "overlap",
        "row": f"{name}, stage {place}: {run.stage.name}",
        "ours": at.sizes.num_tokens / run.median_s,
        "unit": "tok/s",
        "limit": at.sizes.num_tokens / predicted_s,
        "of_limit": predicted_s / run.median_s,
        "peer": "stage before" if before else None,
        "vs_peer": _factor(before, run) if before else None,
        "over_base": _factor(runs[0], run),
        "seconds": run.median_s,
        "predicted_s": predicted_s,
        "compute_s": compute_s,
        "wire_s": wire_s,
        "bound_by": _bound(run.stage, compute_s, wire_s),
        "num_chunks": run.stage.num_chunks,
        "stretch_of_computation": statistics.median(run.stretch),
        "same_bits_as_chunks_in_turn": True if run.stage.is_overlapped else None,
        **_numbers(run.result, before),
    }


def _bound(stage: Stage, compute_s: float, wire_s: float) -> str:
    """What a faster machine would have to have more of for this stage."""
    if not stage.is_overlapped:
        return "wire and computation in turn"
    return "wire" if wire_s > compute_s else "computation"


def _numbers(result: Mapping[str, Any], before: StageRun | None) -> Row:
    """How a stage's hidden states and next tokens compare with the base's."""
    return {
        "error": result["error"],
        "next_token_equal": result["last_is_equal"],
        "tokens_equal": f"{result['tokens_equal']} of {result['tokens']}",
        "same_bits_as_stage_before": bool(before)
        and result["own_digest"] == before.result["own_digest"],
    }
