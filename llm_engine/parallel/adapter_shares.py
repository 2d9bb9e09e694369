"""Each rank's part of LoRA adapters: A and B are cut as the maps that they update."""

# O outputs and I inputs of a fused map, R sum of the ranks of its modules.

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.ledger import Decision
from kernels.spec import Tier
from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.adapters.lora import LoraAdapter
from llm_engine.adapters.update import Update
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.shares import WeightShare, phase_share
from llm_engine.parallel.slices import shifted

_EXPERT = re.compile(r"experts\.(\d+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class HeldAdapters:
    """What a rank keeps of an engine's adapters, cut for `share`; layers count from `first`."""

    adapters: AdapterSet
    share: WeightShare
    first: int
    head_dim: int

    @classmethod
    def of(
        cls,
        whole: AdapterSet,
        config: ModelConfig,
        layouts: PhaseLayouts,
        held: WeightShare,
    ) -> Self:
        """The rank's part, `held` being its part of the weights.

        All of them where prompts alone pass through stages: a rank has some layers whole then,
        and slices of the others.
        """
        every, first = phase_share(config, Layout(), 0), held.layers.start
        if layouts.is_restaged:
            return cls(whole, every, first, config.head_dim)
        cut = cut_adapters(whole, config.head_dim, every, held, first)
        return cls(cut, held, first, config.head_dim)

    def to(self, place: torch.device) -> Self:
        """The same part, on a device."""
        return replace(self, adapters=self.adapters.to(place))

    def used(self, share: WeightShare) -> AdapterSet:
        """The part for a phase that computes with `share`."""
        return cut_adapters(self.adapters, self.head_dim, self.share, share, self.first)


def cut_adapters(
    adapters: AdapterSet, head_dim: int, outer: WeightShare, inner: WeightShare, first: int
) -> AdapterSet:
    """The part for the share `inner`, of adapters that are cut for `outer`; `inner` lies within.

    Where a map's outputs are split (qkv, gate_up), A is whole and B has the rank's rows; where its
    inputs are (out, down), A has the rank's columns and B is whole: the update is a term of the
    same sum over ranks as the map's own output. Layers count from the first of `outer`, and in the
    result from `first`.
    """
    if outer == inner:
        return adapters
    cut: list[LoraAdapter] = []
    for adapter in adapters.adapters:
        updates: dict[tuple[int, str], Update] = {}
        for (layer, part), update in adapter.updates.items():
            number = layer + outer.layers.start
            if number in inner.layers and _has(inner, part):
                updates[number - first, part] = _cut(update, part, head_dim, outer, inner)
        cut.append(LoraAdapter(adapter.name, updates))
    return AdapterSet(cut)


def adapter_decision(layouts: PhaseLayouts) -> Decision:
    """How adapters lie over the ranks, for the ledger."""
    reasons = (
        "A whole and B by rows where a map's outputs are split, A by columns and B whole where its "
        "inputs are: an update is a term of the map's own sum, and adds no exchange",
    )
    if "a2a" in (layouts.prefill.dispatch, layouts.decode.dispatch):
        reasons += ("a row that goes to the ranks of its experts takes its adapter's number along",)
    if layouts.is_restaged:
        reasons += ("kept whole, since one phase has layers whole and the other has all in slices",)
    return Decision(
        kind="layout",
        where="llm engine, ranks",
        what="adapters",
        asked="auto",
        chosen="cut as the maps that they update",
        tier=Tier.GENERIC,
        source="default",
        case=str(layouts),
        reasons=reasons,
        evidence="run on CPU between processes of one host; over several GPUs or hosts: unverified",
    )


def _has(share: WeightShare, part: str) -> bool:
    """Whether a rank computes any of a fused map."""
    match = _EXPERT.fullmatch(part)
    return match is None or int(match[1]) in share.experts


def _cut(
    update: Update, part: str, head_dim: int, outer: WeightShare, inner: WeightShare
) -> Update:
    match = _EXPERT.fullmatch(part)
    if match is not None:
        kind, runs = match[2], _channels(outer.expert_channels, inner.expert_channels)
    elif part in ("gate_up", "down"):
        kind, runs = part, _channels(outer.channels, inner.channels)
    else:
        kind, runs = part, _heads(head_dim, outer, inner)
    if kind in ("out", "down"):
        columns = runs[0]
        # A copy, so that the memory of the rest is given back.
        return Update(update.a_RI[:, columns.start : columns.stop].clone(), update.b_OR)
    return Update(update.a_RI, torch.cat([update.b_OR[run.start : run.stop] for run in runs]))


def _channels(outer: range, inner: range) -> list[range]:
    """The rows of gate and up; the first run are also the columns of down."""
    gate = shifted(inner, -outer.start)
    return [gate, shifted(gate, len(outer))]


def _heads(head_dim: int, outer: WeightShare, inner: WeightShare) -> list[range]:
    """The rows of queries, keys and values; the first run are also the columns of out."""
    num_queries, num_kv = len(outer.heads.queries), len(outer.heads.kv)
    queries = shifted(inner.heads.queries, -outer.heads.queries.start)
    keys = shifted(inner.heads.kv, num_queries - outer.heads.kv.start)
    runs = (queries, keys, shifted(keys, num_kv))
    return [range(run.start * head_dim, run.stop * head_dim) for run in runs]
