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

from benchmarks.overlap.measure import Measurement, StageRun
from benchmarks.overlap.rates import SERIAL, overlapped
from benchmarks.overlap.stages import LEVELS, staircase
from llm_engine.parallel.overlap_choice import CHUNKS, choose_overlap

PUBLISHED_TOKENS_S = (1932.0, 5850.0, 13274.0)
BASE_WIRE_SHARE = 1233e3 / 3.5e9 / (1 / PUBLISHED_TOKENS_S[0])
GOAL = PUBLISHED_TOKENS_S[-1] / PUBLISHED_TOKENS_S[0]

Row = dict[str, Any]


def measure_staircase(name: str, at: Measurement, say: Callable[[str], None]) -> list[Row]:
    """A row for each stage, and one for the whole."""
    at.meet(float("inf"))
    base_s = at.computation_s(staircase(1)[0])
    rate = at.rate_for(base_s * BASE_WIRE_SHARE / (1 - BASE_WIRE_SHARE))
    say(f"{name}: generic computation {base_s:.2f} s, so the link is set to {rate / 1e6:.1f} MB/s")
    at.meet(rate)
    costs = at.step_costs([SERIAL, *(overlapped(k) for k in CHUNKS)])
    num_chunks, decision = choose_overlap(at.sizes.num_tokens, costs, f"{name}, prefill")
    runs = at.rounds(staircase(num_chunks), say)
    rows = [_stage_row(name, at, runs, place) for place in range(len(runs))]
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
        "base_wire_share": 1 - at.predicted(runs[0].stage).busy_s(0) / runs[0].median_s,
        "levels": {
            "kernels": _factor(runs[0], runs[LEVELS["kernels"]]),
            "overlap, layout and wire": _factor(runs[LEVELS["kernels"]], runs[-1]),
        },
        "published_levels": [
            PUBLISHED_TOKENS_S[1] / PUBLISHED_TOKENS_S[0],
            PUBLISHED_TOKENS_S[2] / PUBLISHED_TOKENS_S[1],
        ],
        "exact_stages_alone": _factor(runs[0], exact[-1]),
        "gate": decision.chosen,
        "gate_reasons": list(decision.reasons),
        "link": "in-process limit of each message",
    }
    return [*rows, total]


def _factor(slow: StageRun, fast: StageRun) -> float:
    """Median over the rounds of one's time over the other's."""
    pairs = zip(slow.seconds, fast.seconds, strict=True)
    return statistics.median(s / f for s, f in pairs)


def _stage_row(name: str, at: Measurement, runs: Sequence[StageRun], place: int) -> Row:
    run = runs[place]
    predicted_s = at.predicted(run.stage).duration_s
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
        "num_chunks": run.stage.num_chunks,
        "stretch_of_computation": statistics.median(run.stretch),
        **_numbers(run.result, before),
    }


def _numbers(result: Mapping[str, Any], before: StageRun | None) -> Row:
    """How a stage's hidden states and next tokens compare with the base's."""
    return {
        "error": result["error"],
        "next_token_equal": result["last_is_equal"],
        "tokens_equal": f"{result['tokens_equal']} of {result['tokens']}",
        "same_bits_as_stage_before": bool(before)
        and result["own_digest"] == before.result["own_digest"],
    }
