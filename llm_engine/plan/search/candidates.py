"""The layouts worth predicting, and those left out with their reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llm_engine.plan.search.layout import Experts, Keys, Layout
from llm_engine.plan.search.model_steps import ModelFacts

CHUNKS = (2048, 4096, 8192, 16384)
_OVERLAPS = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A layout that is not taken."""

    phase: str
    layout: str
    reason: str


def layouts(
    facts: ModelFacts, num_devices: int, phase: str, wire: str
) -> tuple[tuple[Layout, ...], tuple[Rejected, ...]]:
    """Every layout of a phase that the model allows, and the reasons against others."""
    kept: list[Layout] = []
    rejected: dict[str, Rejected] = {}
    for layout in _all(facts, num_devices, phase, wire):
        reason = _against(facts, layout)
        if reason:
            entry = Rejected(phase=phase, layout=str(layout), reason=reason)
            rejected.setdefault(reason, entry)
        else:
            kept.append(layout)
    return tuple(kept), tuple(rejected.values())


def overlapped(layout: Layout) -> tuple[Layout, ...]:
    """The layout with each number of chunks; one where no schedule hides what is exchanged."""
    is_ring = layout.cp > 1 and layout.keys == "ring"
    blocks = layout.dp > 1 and (layout.cp > 1 or layout.experts == "exchange")
    if layout.width == 1 or is_ring or blocks:
        return (layout,)
    return tuple(replace(layout, num_chunks=count) for count in _OVERLAPS)


def _all(facts: ModelFacts, n: int, phase: str, wire: str) -> Iterator[Layout]:
    is_prefill = phase == "prefill"
    for replicas, pp, tp in itertools.product(_divisors(n), repeat=3):
        if n % (replicas * pp * tp):
            continue
        rest = n // (replicas * pp * tp)
        for axis, keys in _rows(facts, rest, is_prefill=is_prefill):
            for experts in _ways(facts, tp, axis, rest):
                base = Layout(
                    replicas=replicas,
                    pp=pp,
                    tp=tp,
                    cp=rest if axis == "cp" else 1,
                    dp=rest if axis == "dp" else 1,
                    keys=keys,
                    experts=experts,
                    wire=wire if tp * rest > 1 else "bf16",
                )
                shards = (1,) if is_prefill or keys == "ring" else _shards(facts, tp)
                for shard in shards:
                    yield replace(base, kv_shard=shard)


def _rows(facts: ModelFacts, rest: int, *, is_prefill: bool) -> Iterator[tuple[str, Keys]]:
    """How the ranks that do not divide heads divide rows, and how keys meet them.

    Answers are not decoded over gathered keys: replicas hold as many and exchange nothing.
    """
    if rest == 1:
        yield "", "gather"
        return
    yield "dp", "gather"
    if is_prefill:
        yield "cp", "gather"
    yield "cp", "ring"
    if is_prefill and not facts.has_shared_rows:
        yield "cp", "heads"


def _shards(facts: ModelFacts, tp: int) -> tuple[int, ...]:
    return _divisors(max(1, tp // facts.kv_heads))


def _ways(facts: ModelFacts, tp: int, axis: str, rest: int) -> tuple[Experts, ...]:
    if not facts.num_experts:
        return ("dense",)
    if tp * rest == 1:
        return ("local",)
    if rest == 1:
        return ("columns", "reduce")
    if axis == "dp":  # with whole experts on each, replicas do the same
        return ("gather", "exchange")
    return ("gather", "exchange", "local")


def _against(facts: ModelFacts, layout: Layout) -> str:
    unit = layout.tp * (layout.cp if layout.keys == "heads" else 1)
    if facts.num_heads % unit:
        return f"{facts.num_heads} heads cannot be divided by {unit}"
    if facts.kv_heads % unit and unit % facts.kv_heads:
        return f"{facts.kv_heads} key/value heads make no equal shares for {unit} ranks"
    if layout.cp > 1 and facts.has_recurrence:
        return "a recurrent state is passed from token to token: no cut by tokens"
    if layout.keys == "ring" and facts.has_shared_rows:
        return "each query chooses among all cached rows, so its rank needs all: they are gathered"
    if layout.dp > 1 and layout.pp > 1:
        return "sequences of their own on ranks of several stages: take replicas, or leave pp out"
    if layout.pp > facts.num_layers:
        return f"{facts.num_layers} layers make no {layout.pp} stages"
    if layout.experts == "columns" and facts.expert_columns % layout.width:
        return f"{facts.expert_columns} channels of an expert cannot be divided by {layout.width}"
    if layout.experts in ("reduce", "gather", "exchange") and facts.num_experts % layout.width:
        return f"{facts.num_experts} experts cannot be divided by {layout.width}"
    return ""


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)
