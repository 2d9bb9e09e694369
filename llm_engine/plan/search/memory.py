"""What a device holds under a pair of layouts: weights, workspace, and the room for cached rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_engine.plan.search.work import is_mlp, stage_layers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernels.layer_groups import ModelShape, RowGroup
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelFacts, ModelSteps
    from llm_engine.plan.search.prediction import StepSize

_RUNTIME_BYTES = 1.0e9  # context of the driver, libraries, graphs: assumed
_CPU_RUNTIME_BYTES = 0.6e9
SAFETY = 0.04  # of the memory: fragmentation and what nobody counted


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of the fullest device, and what the rest holds.

    Units: bytes; tokens of all sequences on the whole machine (`kv_tokens`), of the longest
    sequence (`max_context`). `free_bytes` below 0: it does not fit.
    """

    total_bytes: int
    weight_bytes: float
    workspace_bytes: float
    reserved_bytes: float
    token_bytes: float
    kv_tokens: int
    max_context: int

    @property
    def free_bytes(self) -> float:
        """For cached rows."""
        return self.total_bytes - self.weight_bytes - self.workspace_bytes - self.reserved_bytes


def memory_use(
    steps: ModelSteps,
    prefill: Layout,
    decode: Layout,
    size: StepSize,
    *,
    total_bytes: int,
    num_sequences: int,
    is_cpu: bool = False,
) -> MemoryUse:
    """Memory of the fullest device when both phases share one set of weights."""
    shape, facts = steps.at(size), steps.facts
    weights = weight_bytes(shape, prefill, decode, steps)
    workspace = _workspace(steps, prefill, size)
    reserved = (_CPU_RUNTIME_BYTES if is_cpu else _RUNTIME_BYTES) + SAFETY * total_bytes
    per_token = token_bytes(shape.rows, facts, decode)
    heads = min(decode.tp, facts.kv_heads)
    fixed = sum(rows.bytes_per_sequence for rows in shape.rows) / decode.pp / heads
    own = -(-num_sequences // (decode.dp * decode.replicas))  # on a rank
    free = total_bytes - weights - workspace - reserved - fixed * own
    # Stages compute prompts in pages of their own, as many as the longest sequence takes.
    staged = token_bytes(shape.rows, facts, prefill) if prefill.key_ranks > 1 else 0.0
    longest = int(free / (per_token + staged)) if per_token else 0
    tokens = max(0, int((free - staged * min(longest, size.context)) / per_token)) if longest else 0
    return MemoryUse(
        total_bytes=total_bytes,
        weight_bytes=weights,
        workspace_bytes=workspace + fixed * own,
        reserved_bytes=reserved,
        token_bytes=per_token,
        kv_tokens=tokens * decode.dp * decode.replicas,
        max_context=max(0, min(longest, facts.max_context)),
    )


def token_bytes(
    rows: Iterable[RowGroup], facts: ModelFacts, layout: Layout, *, replicated: str = ""
) -> float:
    """Bytes that a sequence grows by on one device for each token.

    `replicated`: groups with this word in their name stay whole on the ranks that divide the rest.
    """
    spread = layout.cp if layout.keys == "ring" else 1
    share = 1 / layout.pp / min(layout.tp, facts.kv_heads) / spread
    return share * sum(
        group.bytes_per_token / (1 if replicated and replicated in group.name else layout.kv_shard)
        for group in rows
    )


def weight_bytes(shape: ModelShape, prefill: Layout, decode: Layout, steps: ModelSteps) -> float:
    """Bytes of weights on the fullest device: whatever either phase needs there.

    Products that both phases cut by heads are cut; one phase that needs them whole keeps them so.
    Where prompts alone pass through stages, layers of other stages are there by heads.
    """
    cut = min(prefill.tp, decode.tp)
    mlps = min(x.width if x.shares_mlps else x.tp for x in (prefill, decode))
    experts = 1 if prefill.experts == "local" else prefill.width
    total = 0.0
    for group in shape.phases[-1].groups:
        layers = stage_layers(group, prefill)
        others = len(group.layers) - layers if group.layers and prefill.key_ranks > 1 else 0.0
        of_part = mlps if is_mlp(group) else cut
        for use in group.uses:
            layer = use.count * use.cost.weight_bytes
            if use.op == "engram":
                continue  # its table stays in host memory
            if not group.layers:
                total += layer / prefill.width  # the head is cut by columns of the vocabulary
                continue
            is_cut = use.is_cut or use.op == "moe_gemm"
            held = experts if use.op == "moe_gemm" else of_part if use.is_cut else 1
            total += layer * (layers / held + others / (decode.width if is_cut else 1))
    embedding = shape.weight_bytes - sum(
        g.num_layers * u.count * u.cost.weight_bytes
        for g in shape.phases[-1].groups
        for u in g.uses
    )
    return total + max(0.0, embedding) / prefill.width


def _workspace(steps: ModelSteps, layout: Layout, size: StepSize) -> float:
    """Activations of a prefill step: residual streams, an MLP's inside, gathered rows."""
    facts, item = steps.facts, steps.item_bytes
    own_rows = size.rows * layout.row_share(size.rows, size.batch)
    streams = 4 * own_rows * facts.hidden * facts.row_streams * item
    has_gathered = layout.shares_mlps or layout.experts not in ("local", "dense")
    gathered = 2 * size.rows * facts.hidden * item if has_gathered else 0.0
    layer_bytes = size.context * steps.at(size).cache_bytes_per_token / facts.num_layers
    # One layer's rows of a sequence, gathered from the ranks that keep them.
    if layout.kv_shard > 1:
        gathered += layer_bytes / layout.pp
    if layout.cp > 1 and layout.keys == "ring":  # the block at hand and the next one
        gathered += 2 * layer_bytes / layout.cp / min(layout.tp, facts.kv_heads)
    inside = 6 * own_rows * facts.hidden * item * max(1, facts.top_k) / 2
    return streams + gathered + inside
