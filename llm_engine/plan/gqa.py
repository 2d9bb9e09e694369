"""llama, qwen3, qwen3_moe: grouped-query attention over pages, dense or expert MLPs."""

from __future__ import annotations

from kernels.layer_groups import LayerGroup, ModelShape, OpUse, RowGroup, use
from kernels.spec import ITEM_BYTES
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.shape import layer_group, model_shape
from llm_engine.plan.step import Step

PAGE_TOKENS = 16


def describe(fields: ConfigFields, request: PlanRequest) -> ModelShape:
    """The layers, op uses and cached rows of a grouped-query model."""
    page = request.vendor_page or PAGE_TOKENS
    layers = tuple(range(fields.count("num_hidden_layers")))
    kv_heads, head_dim = _heads(fields)[1:]

    def groups(step: Step) -> tuple[LayerGroup, ...]:
        attention = layer_group("attention", layers, _attention(step, fields, page))
        head = step.head(fields.count("hidden_size"), fields.count("vocab_size"))
        return (attention, *_mlps(step, fields, layers), head)

    rows = RowGroup(
        name="keys and values",
        layers=layers,
        row_bytes=round(2 * kv_heads * head_dim * ITEM_BYTES[_cache_item(request)]),
        page_tokens=page,
        reason="small pages let more of a prefix be reused",
    )
    return model_shape(fields, request, groups, (rows,))


def _heads(fields: ConfigFields) -> tuple[int, int, int]:
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    return heads, kv_heads, fields.count("head_dim", fields.count("hidden_size") // heads)


def _cache_item(request: PlanRequest) -> str:
    return request.dtype if request.cache != "fp8" else "fp8"


def _attention(step: Step, fields: ConfigFields, page: int) -> tuple[OpUse, ...]:
    width = fields.count("hidden_size")
    heads, kv_heads, head_dim = _heads(fields)
    has_norm = fields.text("model_type", "").startswith("qwen3")
    return (
        step.norm(width, residual=True),
        step.linear((heads + 2 * kv_heads) * head_dim, width, is_cut=True),
        step.rotary((heads, kv_heads), head_dim, head_dim, page, style="half", has_norm=has_norm),
        paged_attention(step, heads, kv_heads, head_dim, page),
        step.linear(width, heads * head_dim, is_cut=True),
    )


def paged_attention(step: Step, heads: int, kv_heads: int, head_dim: int, page: int) -> OpUse:
    """Attention of the step's rows over their pages."""
    op, rows = ("paged_prefill", "T") if step.is_prefill else ("paged_decode", "B")
    sizes = {rows: step.rows, "S": step.context, "H": heads, "K": kv_heads, "D": head_dim}
    return use(
        op,
        step.dtype,
        sizes | {"page": page},
        options={"window": "none", "sink": "none"},
        attended=step.attended(),
    )


def _mlps(step: Step, fields: ConfigFields, layers: tuple[int, ...]) -> tuple[LayerGroup, ...]:
    width = fields.count("hidden_size")
    norm = step.norm(width, residual=True)
    sparse = tuple(layer for layer in layers if _is_sparse(fields, layer))
    dense = tuple(layer for layer in layers if layer not in sparse)
    groups: list[LayerGroup] = []
    if dense:
        uses = (norm, *step.mlp(width, fields.count("intermediate_size")))
        groups.append(layer_group("dense MLP", dense, uses))
    if sparse:
        experts = step.experts(
            fields.count("num_experts"),
            fields.count("num_experts_per_tok"),
            width,
            fields.count("moe_intermediate_size"),
            score="softmax",
        )
        groups.append(layer_group("experts", sparse, (norm, *experts)))
    return tuple(groups)


def _is_sparse(fields: ConfigFields, layer: int) -> bool:
    if not fields.has("num_experts") or layer in fields.counts("mlp_only_layers"):
        return False
    return (layer + 1) % fields.count("decoder_sparse_step", 1) == 0
