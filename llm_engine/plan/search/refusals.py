"""Why a layout was not taken, and why a model does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_engine.plan.search.candidates import Rejected
from llm_engine.plan.search.serving_plan import Cause, DoesNotFit

if TYPE_CHECKING:
    from llm_engine.plan.search.goals import Pair
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.memory import MemoryUse
    from llm_engine.plan.search.model_steps import ModelSteps
    from llm_engine.plan.search.prediction import StepPrediction
    from llm_engine.plan.search.serving_plan import Workload

_MOST_KINDS = 8


def passed_over(
    phase: str,
    options: Sequence[StepPrediction],
    chosen: StepPrediction,
    fitting: Sequence[Pair],
    tight: Sequence[Pair],
    longest: int,
) -> tuple[Rejected, ...]:
    """The best of each kind of layout that was not taken, and why.

    `fitting` and `tight` are the pairs with and without room for the longest request of `longest`
    tokens.
    """
    fits = {_without_shards(phase, pair) for pair in fitting}
    found: list[Rejected] = []
    for option in _one_of_each(options):
        if str(option.layout) == _shardless(phase, chosen.layout):
            continue
        text = str(option.layout)
        reason = _slower(option, chosen)
        if text not in fits:
            others = [pair.memory for pair in tight if _without_shards(phase, pair) == text]
            reason = no_room(others, longest)
        found.append(Rejected(phase=phase, layout=text, reason=reason))
    return tuple(found)


def _without_shards(phase: str, pair: Pair) -> str:
    return _shardless(phase, getattr(pair, phase).layout)


def _shardless(phase: str, layout: Layout) -> str:
    """A layout in words; how decode divides the cache is no choice of a prompt's layout."""
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


def _slower(option: StepPrediction, chosen: StepPrediction) -> str:
    reason = f"{option.rows_s:.0f} tokens/s against {chosen.rows_s:.0f}, {option.binds} binds"
    if option.layout.pp > chosen.layout.pp and option.fill_s:
        reason += f"; a prompt alone waits {option.fill_s:.2f} s for the other stages"
    return reason


def _one_of_each(options: Iterable[StepPrediction]) -> list[StepPrediction]:
    """The fastest of every kind of layout."""
    best: dict[tuple[object, ...], StepPrediction] = {}
    for option in options:
        x = option.layout
        kind = (x.replicas > 1, x.pp > 1, x.tp > 1, x.cp > 1, x.dp > 1, x.experts, x.kv_shard > 1)
        if kind not in best or option.rows_s > best[kind].rows_s:
            best[kind] = option
    return sorted(best.values(), key=lambda p: -p.rows_s)[:_MOST_KINDS]
