"""Each phase by itself: its layouts predicted, and the best of them once more in chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llm_engine.parallel.overlap_policy import LEAST_ROWS
from llm_engine.plan.search.candidates import CHUNKS, Rejected, layouts, overlapped
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepPrediction, StepSize

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelSteps
    from llm_engine.plan.search.serving_plan import Workload

# Of the layouts that need the same weights, so many are run in chunks: those that could be best.
_TRIED_IN_CHUNKS = 3


def prefills(
    steps: ModelSteps, setting: Setting, work: Workload
) -> tuple[list[StepPrediction], tuple[Rejected, ...]]:
    """Every layout of a prompt with every size of step, in chunks where that pays."""
    kept, rejected = layouts(steps.facts, setting.num_devices, "prefill", work.wire)
    chunks = (work.chunk,) if work.chunk else CHUNKS
    rows = sorted({min(chunk, work.prompt_tokens) for chunk in chunks})
    found = [predict_step(steps, setting, x, _step_of(x, r, work)) for x in kept for r in rows]
    tried = _could_be_best(found)
    return [
        in_chunks(steps, setting, p) if i in tried else p for i, p in enumerate(found)
    ], rejected


def _step_of(layout: Layout, rows: int, work: Workload) -> StepSize:
    """A step of one prompt, or of one for each dp rank where throughput counts.

    A prompt alone keeps one of the dp ranks busy in attention, the others wait.
    """
    waiting = -(-work.num_clients // layout.replicas)
    batch = min(layout.dp, waiting) if work.goal == "throughput" else 1
    return StepSize(phase="prefill", rows=rows, context=work.prompt_tokens, batch=batch)


def decodes(
    steps: ModelSteps, setting: Setting, work: Workload
) -> tuple[list[StepPrediction], tuple[Rejected, ...]]:
    """Every layout of a step that adds a token to each sequence, in micro-batches where it pays."""
    kept, rejected = layouts(steps.facts, setting.num_devices, "decode", work.wire)
    found: list[StepPrediction] = []
    for layout in kept:
        batch = -(-work.num_clients // layout.replicas)  # of one replica
        size = StepSize(phase="decode", rows=batch, context=work.longest, batch=batch)
        found.append(predict_step(steps, setting, layout, size))
    tried = [index for index in _could_be_best(found) if _has_micro_batches(found[index])]
    return [
        in_chunks(steps, setting, p) if i in tried else p for i, p in enumerate(found)
    ], rejected


def _has_micro_batches(found: StepPrediction) -> bool:
    """Whether the engine would cut the step: a stage takes a half as long as the whole."""
    return found.layout.pp == 1 and found.size.rows >= LEAST_ROWS["decode"]


def in_chunks(steps: ModelSteps, setting: Setting, found: StepPrediction) -> StepPrediction:
    """The step in the number of chunks that is fastest; in one piece, with why, where none is."""
    one_piece, *cut = overlapped(found.layout)
    plain = found
    if found.layout != one_piece:
        plain = predict_step(steps, setting, one_piece, found.size)
    options = [predict_step(steps, setting, layout, found.size) for layout in cut]
    best = min(options, key=lambda p: p.seconds, default=plain)
    if best.seconds < plain.seconds:
        return best
    return replace(plain, reasons=options[0].reasons) if options else plain


def _could_be_best(found: list[StepPrediction]) -> frozenset[int]:
    """Those whose longer side, computing or transfers, is least: no overlap can beat it."""
    by_weights: dict[object, list[int]] = {}
    for index, prediction in enumerate(found):
        if prediction.layout.width > 1:
            by_weights.setdefault(prediction.layout.weights_key, []).append(index)

    def bound_s(index: int) -> float:
        parts, rows = found[index].parts, found[index].size.rows
        return max(parts.compute_s, parts.wire) / rows

    return frozenset(
        index
        for same in by_weights.values()
        for index in sorted(same, key=bound_s)[:_TRIED_IN_CHUNKS]
    )
