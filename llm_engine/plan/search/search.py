"""The choice: both phases searched apart, joined where one set of weights serves them and fits.

A layout is preferred to a simpler one only where it gains more than the error of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llm_engine.plan.search.candidates import CHUNKS, Rejected, layouts, overlapped
from llm_engine.plan.search.goals import GOALS_S, Goal, Pair, bar_s
from llm_engine.plan.search.memory import MemoryUse, memory_use
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepPrediction, StepSize
from llm_engine.plan.search.runnable import RunsToday, runnable
from llm_engine.plan.search.serving_plan import DoesNotFit, PromptTime, Workload

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A joint choice, with what was passed over."""

    prefill: StepPrediction
    decode: StepPrediction
    memory: MemoryUse
    today: RunsToday
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...]


def search(
    steps: ModelSteps, setting: Setting, work: Workload, *, is_cpu: bool
) -> Choice | DoesNotFit:
    """The best layouts for a workload.

    Raises: UnsupportedModel, ValueError as `predict_step`.
    """
    prefills, rejected = _predictions(steps, setting, work, "prefill")
    decodes, more = _predictions(steps, setting, work, "decode")
    pairs: list[Pair] = []
    tight: list[MemoryUse] = []
    for prefill in prefills:
        for decode in decodes:
            if prefill.layout.weights_key != decode.layout.weights_key:
                continue
            memory = memory_use(
                steps,
                prefill.layout,
                decode.layout,
                prefill.size,
                total_bytes=setting.rates.memory_bytes,
                num_sequences=work.num_clients,
                is_cpu=is_cpu,
            )
            if memory.max_context >= _longest(work):
                pairs.append(Pair(prefill=prefill, decode=decode, memory=memory))
            else:
                tight.append(memory)
    if not pairs:
        return _does_not_fit(tight, steps, work)
    goal = GOALS_S[work.goal]
    best = min(pairs, key=lambda pair: goal(pair, work))
    chosen, notes = _simplest(pairs, best, goal, setting, work)
    rejected = (*rejected, *more, *_passed_over(prefills, decodes, pairs, chosen))
    return Choice(
        prefill=chosen.prefill,
        decode=chosen.decode,
        memory=chosen.memory,
        today=_today(pairs, chosen, goal, steps, work),
        rejected=rejected,
        notes=notes,
    )


def prompt_time(
    steps: ModelSteps, setting: Setting, layout: Layout, chunk: int, tokens: int
) -> PromptTime:
    """A prompt alone, chunk after chunk over a growing context; a pipeline fills once."""
    seconds = low_s = high_s = 0.0
    done = 0
    last: StepPrediction | None = None
    while done < tokens:
        rows = min(chunk, tokens - done)
        done += rows
        last = predict_step(
            steps, setting, layout, StepSize(phase="prefill", rows=rows, context=done)
        )
        seconds, low_s, high_s = seconds + last.seconds, low_s + last.low_s, high_s + last.high_s
    fill = last.fill_s if last else 0.0
    scale = 1 + fill / seconds if seconds else 1.0
    return PromptTime(seconds=seconds * scale, low_s=low_s * scale, high_s=high_s * scale)


def _longest(work: Workload) -> int:
    return work.prompt_tokens + work.answer_tokens


def _predictions(
    steps: ModelSteps, setting: Setting, work: Workload, phase: str
) -> tuple[list[StepPrediction], tuple[Rejected, ...]]:
    kept, rejected = layouts(steps.facts, setting.num_devices, phase, work.wire)
    if phase == "decode":
        size = StepSize(phase=phase, rows=0, context=_longest(work), batch=1)
        return [predict_step(steps, setting, x, _own(size, x, work)) for x in kept], rejected
    chunks = (work.chunk,) if work.chunk else CHUNKS
    rows = sorted({min(chunk, work.prompt_tokens) for chunk in chunks})
    sizes = [StepSize(phase=phase, rows=r, context=work.prompt_tokens) for r in rows]
    found: list[StepPrediction] = []
    for layout in kept:
        for size in sizes:
            options = [predict_step(steps, setting, x, size) for x in overlapped(layout)]
            plain, best = options[0], min(options, key=lambda p: p.seconds)
            bar = plain.parts.difference_error_s(best.parts, setting.errors)
            found.append(best if plain.seconds - best.seconds > bar else plain)
    return found, rejected


def _own(size: StepSize, layout: Layout, work: Workload) -> StepSize:
    """Sequences of one replica."""
    batch = -(-work.num_clients // layout.replicas)
    return replace(size, batch=batch, rows=batch)


def _today(
    pairs: list[Pair],
    chosen: Pair,
    goal: Goal,
    steps: ModelSteps,
    work: Workload,
) -> RunsToday:
    """The best of the pairs that the engine runs; the chosen one where it is among them."""
    family = steps.at(chosen.prefill.size).family

    def seconds(pair: Pair) -> float:
        return goal(pair, work)

    for pair in (chosen, *sorted(pairs, key=seconds)):
        found = runnable(family, pair.prefill.layout, pair.decode.layout)
        if found.text:
            return RunsToday(
                text=found.text,
                services=found.services,
                num_ranks=pair.prefill.layout.pp * pair.prefill.layout.width,
                prefill=str(pair.prefill.layout),
                decode=str(pair.decode.layout),
                slower=seconds(pair) / seconds(chosen) - 1 if work.goal != "context" else 0.0,
            )
    reason = runnable(family, chosen.prefill.layout, chosen.decode.layout).reason
    return RunsToday(text="", reason=reason)


def _simplest(
    pairs: list[Pair],
    best: Pair,
    goal: Goal,
    setting: Setting,
    work: Workload,
) -> tuple[Pair, tuple[str, ...]]:
    """The simplest pair that the best one does not beat by more than the error."""
    if work.goal == "context":
        return best, ()
    best_s = goal(best, work)
    equal = [
        pair
        for pair in pairs
        if pair.complexity < best.complexity
        and goal(pair, work) - best_s <= bar_s(pair, best, setting, work)
    ]
    if not equal:
        return best, ()
    chosen = min(equal, key=lambda pair: (pair.complexity, goal(pair, work)))
    gain = goal(chosen, work) / best_s - 1
    text = (
        f"not preferred: {best.prefill.layout} then {best.decode.layout} gains {gain:.0%}, "
        "less than the error of the comparison"
    )
    return chosen, (text,)


def _passed_over(
    prefills: list[StepPrediction],
    decodes: list[StepPrediction],
    pairs: list[Pair],
    chosen: Pair,
) -> tuple[Rejected, ...]:
    """The best of each kind that was not taken, and why."""
    found: list[Rejected] = []
    for phase, options, own in (
        ("prefill", prefills, chosen.prefill),
        ("decode", decodes, chosen.decode),
    ):
        fitting = {str(getattr(pair, phase).layout) for pair in pairs}
        for option in _one_of_each(options):
            if option.layout == own.layout:
                continue
            reason = f"{option.rows_s:.0f} tokens/s against {own.rows_s:.0f}, {option.binds} binds"
            if option.layout.pp > own.layout.pp and option.fill_s:
                reason += f"; a prompt alone waits {option.fill_s:.2f} s for the other stages"
            if str(option.layout) not in fitting:
                reason = "no room beside it, or no weights that serve the other phase as well"
            found.append(Rejected(phase=phase, layout=str(option.layout), reason=reason))
    return tuple(found)


def _one_of_each(options: Iterable[StepPrediction]) -> list[StepPrediction]:
    """The fastest of every kind of layout."""
    best: dict[tuple[object, ...], StepPrediction] = {}
    for option in options:
        x = option.layout
        kind = (x.replicas > 1, x.pp > 1, x.tp > 1, x.cp > 1, x.dp > 1, x.experts, x.kv_shard > 1)
        if kind not in best or option.rows_s > best[kind].rows_s:
            best[kind] = option
    return sorted(best.values(), key=lambda p: -p.rows_s)[:8]


def _does_not_fit(tight: list[MemoryUse], steps: ModelSteps, work: Workload) -> DoesNotFit:
    least = max(tight, key=lambda memory: (memory.max_context, memory.free_bytes))
    needed = least.total_bytes - least.free_bytes + least.token_bytes * _longest(work)
    if _longest(work) > steps.facts.max_context:
        remedy = f"The model itself ends at {steps.facts.max_context} tokens: ask for less."
    elif least.max_context:
        remedy = f"What would: a context of at most {least.max_context} tokens."
    else:
        remedy = (
            f"What would: devices of {needed / 1e9:.0f} GB, more devices, or weights of fewer bits."
        )
    return DoesNotFit(
        weight_bytes=least.weight_bytes,
        needed_bytes=needed,
        device_bytes=least.total_bytes,
        remedy=remedy,
    )
