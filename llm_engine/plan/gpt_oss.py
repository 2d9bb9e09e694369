"""gpt_oss: windows in every second layer, sinks in every head, experts in MXFP4 in every layer."""

from __future__ import annotations

from kernels.layer_groups import LayerGroup, ModelShape, OpUse, RowGroup, use
from kernels.spec import ITEM_BYTES
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.gqa import PAGE_TOKENS
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.shape import layer_group, model_shape
from llm_engine.plan.step import Step


def describe(fields: ConfigFields, request: PlanRequest) -> ModelShape:
    """The layers, op uses and cached rows of a gpt-oss model."""
    page = request.vendor_page or PAGE_TOKENS
    layers = tuple(range(fields.count("num_hidden_layers")))
    kinds = fields.texts("layer_types")
    slides = [kinds[i] == "sliding_attention" if kinds else i % 2 == 0 for i in layers]
    windowed = tuple(layer for layer in layers if slides[layer])
    full = tuple(layer for layer in layers if not slides[layer])
    window = fields.count("sliding_window") if windowed else None

    def groups(step: Step) -> tuple[LayerGroup, ...]:
        found = [layer_group("attention", full, _attention(step, fields, page, None))]
        if windowed:
            uses = _attention(step, fields, page, window)
            found.insert(0, layer_group("window attention", windowed, uses))
        experts = layer_group("experts", layers, _experts(step, fields))
        head = step.head(fields.count("hidden_size"), fields.count("vocab_size"))
        return (*(group for group in found if group.layers), experts, head)

    return model_shape(fields, request, groups, _rows(fields, request, full, windowed, page))


def _rows(
    fields: ConfigFields,
    request: PlanRequest,
    full: tuple[int, ...],
    windowed: tuple[int, ...],
    page: int,
) -> tuple[RowGroup, ...]:
    kv_heads, head_dim = fields.count("num_key_value_heads"), fields.count("head_dim")
    item = ITEM_BYTES["fp8" if request.cache == "fp8" else request.dtype]
    row_bytes = round(2 * kv_heads * head_dim * item)
    rows: list[RowGroup] = []
    if full:
        rows.append(
            RowGroup(
                name="keys and values",
                layers=full,
                row_bytes=row_bytes,
                page_tokens=page,
                reason="small pages let more of a prefix be reused",
            )
        )
    if windowed:
        rows.append(
            RowGroup(
                name="window",
                layers=windowed,
                row_bytes=row_bytes,
                tokens_per_row=0,
                fixed_rows=fields.count("sliding_window"),
                page_tokens=page,
                reason="pages of the full layers' size: a block holds one of each",
            )
        )
    return tuple(rows)


def _attention(
    step: Step, fields: ConfigFields, page: int, window: int | None
) -> tuple[OpUse, ...]:
    width, head_dim = fields.count("hidden_size"), fields.count("head_dim")
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    op, rows = ("paged_prefill", "T") if step.is_prefill else ("paged_decode", "B")
    sizes = {rows: step.rows, "S": step.context, "H": heads, "K": kv_heads, "D": head_dim}
    attention = use(
        op,
        step.dtype,
        sizes | {"page": page},
        options={"window": "none" if window is None else "yes", "sink": "yes"},
        attended=step.attended(at_most=window),
    )
    return (
        step.norm(width, residual=True),
        step.plain((heads + 2 * kv_heads) * head_dim, width, is_cut=True),
        step.rotary((heads, kv_heads), head_dim, head_dim, page, style="half"),
        attention,
        step.plain(width, heads * head_dim, is_cut=True),
    )


def _experts(step: Step, fields: ConfigFields) -> tuple[OpUse, ...]:
    width = fields.count("hidden_size")
    return (
        step.norm(width, residual=True),
        *step.experts(
            fields.count("num_local_experts"),
            fields.count("num_experts_per_tok"),
            width,
            fields.count("intermediate_size"),
            score="softmax",
        ),
    )
