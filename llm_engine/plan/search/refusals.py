"""Why a layout was not taken, and why a model does not fit."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from llm_engine.plan.search.candidates import Rejected
from llm_engine.plan.search.goals import GOALS_S, prompt_alone_s
from llm_engine.plan.search.serving_plan import Cause, DoesNotFit

if TYPE_CHECKING:
    from llm_engine.plan.search.goals import Pair
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.memory import MemoryUse
    from llm_engine.plan.search.model_steps import ModelSteps
    from llm_engine.plan.search.prediction import StepPrediction
    from llm_engine.plan.search.serving_plan import Workload

_MOST_KINDS = 8
Phase = Literal["prefill", "decode"]


def passed_over(
    phase: Phase,
    options: Sequence[StepPrediction],
    chosen: Pair,
    fitting: Sequence[Pair],
    tight: Sequence[Pair],
    work: Workload,
) -> tuple[Rejected, ...]:
    """The best of each kind of layout that was not taken, and why.

    `fitting` and `tight` are the pairs with and without room for the longest request.
    """
    best: dict[str, Pair] = {}
    for pair in fitting:
        text = _without_shards(phase, pair)
        if text not in best or GOALS_S[work.goal](pair, work) < GOALS_S[work.goal](
            best[text], work
        ):
            best[text] = pair
    found: list[Rejected] = []
    for option in _one_of_each(phase, options, best, work):
        text = str(option.layout)
        if text == _without_shards(phase, chosen):
            continue
        if text in best:
            reason = _worse(phase, option, best[text], chosen, work)
        else:
            others = [pair.memory for pair in tight if _without_shards(phase, pair) == text]
            reason = no_room(others, work.longest)
        found.append(Rejected(phase=phase, layout=text, reason=reason))
    return tuple(found)


def _without_shards(phase: Phase, pair: Pair) -> str:
    """A layout in words; how decode divides the cache is no choice of a prompt's layout."""
    layout = getattr(pair, phase).layout
    return str(replace(layout, kv_shard=1) if phase == "prefill" else layout)


def no_room(memories: Sequence[MemoryUse], longest: int) -> str:
    """What is missing at best: weights of its own, memory for weights, or memory for rows."""
    if not memories:
        return "no layout of the other phase uses the same weights"
    best = roomiest(memories)
    gb = best.total_bytes / 1e9
    if best.free_bytes <= 0:
        return (
            f"the weights do not fit: {best.weight_bytes / 1e9:.1f} GB and "
            f"{(best.workspace_bytes + best.reserved_bytes) / 1e9:.1f} GB beside them, of {gb:.1f}"
        )
    return (
        f"no cache left: {best.weight_bytes / 1e9:.1f} GB of weights leave rows for "
        f"{best.max_context:,} tokens, the longest request has {longest:,}"
    )


def roomiest(memories: Sequence[MemoryUse]) -> MemoryUse:
    """The one that comes nearest to fitting."""
    return max(memories, key=lambda memory: (memory.max_context, memory.free_bytes))


def does_not_fit(memories: Sequence[MemoryUse], steps: ModelSteps, work: Workload) -> DoesNotFit:
    """The refusal, with what would help."""
    least = roomiest(memories)
    needed = least.total_bytes - least.free_bytes + least.token_bytes * work.longest
    more = f"What would: devices of {needed / 1e9:.0f} GB, more devices, or weights of fewer bits."
    cause: Cause = "weights"
    remedy = more
    if work.longest > steps.facts.max_context:
        cause = "length"
        remedy = f"The model itself ends at {steps.facts.max_context} tokens: ask for less."
    elif least.free_bytes > 0:
        cause = "cache"
        if least.max_context:
            remedy = f"What would: a context of at most {least.max_context} tokens."
    return DoesNotFit(
        cause=cause,
        weight_bytes=least.weight_bytes,
        needed_bytes=needed,
        device_bytes=least.total_bytes,
        free_bytes=least.free_bytes,
        cached_tokens=least.max_context,
        longest=work.longest,
        remedy=remedy,
    )


def _phase_s(phase: Phase, option: StepPrediction, work: Workload) -> float:
    """What the goal counts of one phase: a prompt or a token alone, else a row among others."""
    if work.goal != "ttft":
        return 1 / option.rows_s
    return prompt_alone_s(option, work) if phase == "prefill" else option.seconds


def _worse(phase: Phase, option: StepPrediction, best: Pair, chosen: Pair, work: Workload) -> str:
    """How it compares by itself, and with the other phase where that is what tells."""
    taken = getattr(chosen, phase)
    times = _phase_s(phase, option, work) / _phase_s(phase, taken, work)
    reason = f"{_compared(phase, option, taken, times, work)}, {option.binds} binds"
    if option.layout.dp > 1 and phase == "prefill" and option.size.batch < option.layout.dp:
        reason += "; of its ranks one attends to the prompt, the others wait"
    if work.goal == "context":
        ours, theirs = best.memory, chosen.memory
        return (
            f"{ours.kv_tokens:,} tokens in the cache against {theirs.kv_tokens:,}, longest "
            f"{ours.max_context:,} against {theirs.max_context:,}; {reason}"
        )
    if times > 1:
        return reason
    goal = GOALS_S[work.goal]
    share = goal(best, work) / goal(chosen, work)
    joint = f"together {share:.2f} times the goal's time"
    joint += ", less than the error of the comparison apart" if share < 1 else ""
    if phase == "prefill":
        return f"{reason}; but answers then are {best.decode.layout}: {joint}"
    return f"{reason}; but prompts then are {best.prefill.layout}: {joint}"


def _compared(
    phase: Phase, option: StepPrediction, taken: StepPrediction, times: float, work: Workload
) -> str:
    if work.goal != "ttft":
        return f"{option.rows_s:,.0f} tokens/s against {taken.rows_s:,.0f}"
    what = "a prompt alone" if phase == "prefill" else "a token"
    return f"{what} takes {times:.2f} times as long"


def _one_of_each(
    phase: Phase, options: Iterable[StepPrediction], fitting: Container[str], work: Workload
) -> list[StepPrediction]:
    """The best of every kind of layout, those that fit first; every mechanism once at least."""

    def order(option: StepPrediction) -> tuple[bool, float]:
        return str(option.layout) not in fitting, _phase_s(phase, option, work)

    best: dict[tuple[object, ...], StepPrediction] = {}
    for option in options:
        x = option.layout
        kind = (*_mechanisms(x), x.replicas > 1, x.tp > 1, x.experts)
        if kind not in best or order(option) < order(best[kind]):
            best[kind] = option
    found = sorted(best.values(), key=order)
    shown = found[:_MOST_KINDS]
    seen = {name for p in shown for name in _mechanisms(p.layout)}
    for option in found[_MOST_KINDS:]:
        if set(_mechanisms(option.layout)) - seen:
            shown.append(option)
            seen |= set(_mechanisms(option.layout))
    return shown


def _mechanisms(layout: Layout) -> tuple[str, ...]:
    used = {
        "stages": layout.pp > 1,
        "rows, keys by " + layout.keys: layout.cp > 1,
        "sequences": layout.dp > 1,
        "divided cache": layout.kv_shard > 1,
    }
    return tuple(name for name, is_used in used.items() if is_used)
