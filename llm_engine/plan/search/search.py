"""The choice: both phases searched apart, joined where one set of weights serves them and fits.

A layout is preferred to a simpler one only where it gains more than the error of the comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from llm_engine.plan.search.candidates import Rejected
from llm_engine.plan.search.goals import GOALS_S, Goal, Pair, bar_s
from llm_engine.plan.search.memory import MemoryUse, memory_use
from llm_engine.plan.search.phases import decodes, in_chunks, prefills
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepPrediction
from llm_engine.plan.search.refusals import does_not_fit, passed_over
from llm_engine.plan.search.runnable import Runnable, RunsToday, runnable
from llm_engine.plan.search.serving_plan import DoesNotFit, Workload

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
    prefill_options, rejected = prefills(steps, setting, work)
    decode_options, more = decodes(steps, setting, work)
    fitting, tight = _pairs(steps, setting, work, prefill_options, decode_options, is_cpu=is_cpu)
    if not fitting:
        return does_not_fit([pair.memory for pair in tight], steps, work)
    goal = GOALS_S[work.goal]
    best = min(fitting, key=lambda pair: goal(pair, work))
    chosen, notes = _simplest(fitting, best, goal, setting, work)
    chosen = replace(chosen, prefill=in_chunks(steps, setting, chosen.prefill))
    return Choice(
        prefill=chosen.prefill,
        decode=chosen.decode,
        memory=chosen.memory,
        today=_today(fitting, chosen, goal, steps, setting, work, is_cpu=is_cpu),
        rejected=(
            *passed_over("prefill", prefill_options, chosen, fitting, tight, work),
            *passed_over("decode", decode_options, chosen, fitting, tight, work),
            *rejected,
            *more,
        ),
        notes=notes,
    )


def _pairs(
    steps: ModelSteps,
    setting: Setting,
    work: Workload,
    prefill_options: Sequence[StepPrediction],
    decode_options: Sequence[StepPrediction],
    *,
    is_cpu: bool,
) -> tuple[list[Pair], list[Pair]]:
    """Layouts that one set of weights serves: those with room for the longest request, and not."""
    fitting: list[Pair] = []
    tight: list[Pair] = []
    found: dict[tuple[int, Layout], StepPrediction] = {}
    for (index, whole), decode in itertools.product(enumerate(prefill_options), decode_options):
        # Prefill gathers rows that are divided, or deals its own out to the ranks that decode.
        layout = whole.layout.serving(decode.layout)
        if layout is None:
            continue
        memory = memory_use(
            steps,
            layout,
            decode.layout,
            whole.size,
            total_bytes=setting.rates.memory_bytes,
            num_sequences=work.num_clients,
            is_cpu=is_cpu,
        )
        if memory.max_context < work.longest:
            tight.append(Pair(prefill=whole, decode=decode, memory=memory))
            continue
        if (index, layout) not in found:
            is_alike = layout == whole.layout
            prefill = whole if is_alike else predict_step(steps, setting, layout, whole.size)
            found[index, layout] = prefill
        fitting.append(Pair(prefill=found[index, layout], decode=decode, memory=memory))
    return fitting, tight


def _today(
    pairs: list[Pair],
    chosen: Pair,
    goal: Goal,
    steps: ModelSteps,
    setting: Setting,
    work: Workload,
    *,
    is_cpu: bool,
) -> RunsToday:
    """The best of the pairs that the engine runs; the chosen one where it runs as planned."""
    family = steps.at(chosen.prefill.size).family
    runs = partial(runnable, family, on_devices=not is_cpu)
    best: tuple[float, Pair, Runnable] | None = None
    for pair in (chosen, *sorted(pairs, key=lambda pair: goal(pair, work))):
        if best is not None and goal(pair, work) >= best[0]:
            break  # no pair runs faster than it was planned
        found = runs(pair.prefill.layout, pair.decode.layout)
        if not found.text:
            continue
        run = _as_run(pair, found, steps, setting)
        seconds = goal(run, work)
        if best is None or seconds < best[0]:
            best = (seconds, run, found)
        if run is chosen:
            break
    if best is None:
        reason = runs(chosen.prefill.layout, chosen.decode.layout).reason
        return RunsToday(text="", reason=reason)
    seconds, run, found = best
    slower = seconds / goal(chosen, work) - 1 if work.goal != "context" else 0.0
    return RunsToday(
        text=found.text,
        services=found.services,
        wire=found.wire,
        num_ranks=run.prefill.layout.pp * run.prefill.layout.width,
        prefill=str(run.prefill.layout),
        decode=str(run.decode.layout),
        is_plan=run is chosen,
        slower=0.0 if run is chosen else slower,
        kv_tokens=run.memory.kv_tokens,
        blocks=next(iter(found.blocks.values()), ""),
    )


def _as_run(pair: Pair, found: Runnable, steps: ModelSteps, setting: Setting) -> Pair:
    """The pair without the overlap that the engine has no schedule for."""
    blocked = {
        phase: predict_step(steps, setting, replace(step.layout, num_chunks=1), step.size)
        for phase, step in (("prefill", pair.prefill), ("decode", pair.decode))
        if phase in found.blocks and step.layout.num_chunks > 1
    }
    return replace(pair, **blocked) if blocked else pair


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
