"""Putting a family's groups together into a ModelShape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kernels.layer_groups import (
    LayerGroup,
    ModelShape,
    OpUse,
    Phase,
    RowGroup,
    layer_range,
    total_parameters,
    total_weight_bytes,
)
from kernels.ledger import Decision
from kernels.spec import ITEM_BYTES
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.step import Step, steps

GroupsOf = Callable[[Step], tuple[LayerGroup, ...]]


def model_shape(
    fields: ConfigFields,
    request: PlanRequest,
    groups_of: GroupsOf,
    rows: tuple[RowGroup, ...],
    *,
    has_sparse_attention: bool = False,
    choices: tuple[Decision, ...] = (),
    notes: tuple[str, ...] = (),
) -> ModelShape:
    """Both phases of a family, its cached rows, and its weights counted from the uses."""
    phases = tuple(_phase(step, groups_of) for step in steps(fields, request))
    vocabulary, width = fields.count("vocab_size"), fields.count("hidden_size")
    embedding = 0 if fields.flag("tie_word_embeddings") else vocabulary * width
    groups = phases[-1].groups
    return ModelShape(
        name="",
        family=fields.text("model_type", ""),
        phases=phases,
        rows=rows,
        parameters=total_parameters(groups) + embedding,
        weight_bytes=total_weight_bytes(groups) + round(embedding * ITEM_BYTES[request.dtype]),
        has_sparse_attention=has_sparse_attention,
        choices=choices,
        notes=notes,
    )


def _phase(step: Step, groups_of: GroupsOf) -> Phase:
    return Phase(
        name=step.phase,
        rows=step.rows,
        context=step.context,
        batch=step.batch,
        groups=groups_of(step),
    )


def layer_group(kind: str, layers: Iterable[int], uses: Sequence[OpUse]) -> LayerGroup:
    """A group named after its layers: "layers 3-60 sparse attention"; equal uses are merged."""
    numbers = tuple(layers)
    merged: dict[tuple[str, str, bool], OpUse] = {}
    for item in uses:
        key = (item.op, str(item.case), item.is_cut)
        known = merged.get(key)
        merged[key] = replace(known, count=known.count + item.count) if known else item
    return LayerGroup(
        name=f"layers {layer_range(numbers)} {kind}", layers=numbers, uses=tuple(merged.values())
    )
