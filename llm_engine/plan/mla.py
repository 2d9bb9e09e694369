"""deepseek_v32 and glm_moe_dsa: latent attention in its absorbed form over selected tokens."""

from __future__ import annotations

from kernels.layer_groups import LayerGroup, ModelShape, OpUse, RowGroup, use
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.shape import layer_group, model_shape
from llm_engine.plan.step import Step

PAGE_TOKENS = 64
_FP8_ROW_BYTES = 656  # 512 e4m3, 64 bf16 of rotation, 4 fp32 scales
_FP8_INDEX_BYTES = 132  # 128 e4m3 and an fp32 scale


def describe(fields: ConfigFields, request: PlanRequest) -> ModelShape:
    """The layers, op uses and cached rows of a model with latent attention and an indexer."""
    page = request.vendor_page or PAGE_TOKENS
    layers = tuple(range(fields.count("num_hidden_layers")))
    full = full_indexers(fields, layers)
    reuse = tuple(layer for layer in layers if layer not in full)

    def groups(step: Step) -> tuple[LayerGroup, ...]:
        attention = mla_attention(step, fields, page)
        searching = (*attention, *indexer(step, fields, page))
        found = [layer_group("sparse attention with an indexer", full, searching)]
        if reuse:
            found.append(layer_group("sparse attention, indices reused", reuse, attention))
        head = step.head(fields.count("hidden_size"), fields.count("vocab_size"))
        return (*found, *mlps(step, fields, layers), head)

    rows = (latent_rows(fields, layers, page, request), index_rows(fields, full, page, request))
    return model_shape(fields, request, groups, rows, has_sparse_attention=True)


def full_indexers(fields: ConfigFields, layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers that run their own indexer."""
    kinds = fields.texts("indexer_types") or ("full",) * len(layers)
    return tuple(layer for layer in layers if kinds[layer] == "full")


def latent_rows(
    fields: ConfigFields, layers: tuple[int, ...], page: int, request: PlanRequest
) -> RowGroup:
    """One latent row a token: the compressed keys and values, and the rotated part."""
    width = fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim")
    is_fp8 = request.cache == "fp8"
    return RowGroup(
        name="latents",
        layers=layers,
        row_bytes=_FP8_ROW_BYTES if is_fp8 else 2 * width,
        page_tokens=page,
        reason="64 rows of a layer in one page, as the sparse kernels gather them",
    )


def index_rows(
    fields: ConfigFields, layers: tuple[int, ...], page: int, request: PlanRequest
) -> RowGroup:
    """One indexer key a token, in the layers that search."""
    is_fp8 = request.cache == "fp8"
    return RowGroup(
        name="indexer keys",
        layers=layers,
        row_bytes=_FP8_INDEX_BYTES if is_fp8 else 2 * fields.count("index_head_dim"),
        page_tokens=page,
        reason="as the latents: one table of pages serves both",
    )


def mla_attention(step: Step, fields: ConfigFields, page: int) -> tuple[OpUse, ...]:
    """Projections, the absorbed attention over at most index_topk tokens, output."""
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    q_rank, kv_rank = fields.count("q_lora_rank"), fields.count("kv_lora_rank")
    nope, rope = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    value = fields.count("v_head_dim")
    rotary = (step.rotary((heads, 1), rope, rope, page, style="interleaved"),) if rope else ()
    return (
        step.norm(width, residual=True),
        step.linear(q_rank, width),
        step.linear(kv_rank + rope, width),
        step.norm(q_rank),
        step.norm(kv_rank, is_quantised=False),
        step.linear(heads * (nope + rope), q_rank, is_cut=True),
        *rotary,
        step.plain(kv_rank, nope, count=heads, is_cut=True),
        sparse_mla(step, fields, page),
        step.plain(value, kv_rank, count=heads, is_cut=True),
        step.linear(width, heads * value, is_cut=True),
    )


def sparse_mla(step: Step, fields: ConfigFields, page: int) -> OpUse:
    """Attention of all heads over one latent row of each selected token."""
    sizes = {
        "T": step.rows,
        "H": fields.count("num_attention_heads"),
        "L": fields.count("kv_lora_rank"),
        "R": fields.count("qk_rope_head_dim"),
        "K": fields.count("index_topk"),
        "page": page,
    }
    options = {"phase": step.phase, "cache": step.cache_rows}
    seen = step.attended(at_most=fields.count("index_topk"))
    return use("sparse_mla", step.dtype, sizes, options=options, attended=seen)


def indexer(step: Step, fields: ConfigFields, page: int) -> tuple[OpUse, ...]:
    """Index queries and keys, and the streaming choice of the best tokens."""
    heads, head_dim = fields.count("index_n_heads"), fields.count("index_head_dim")
    width, rope = fields.count("hidden_size"), fields.count("qk_rope_head_dim")
    style = "half" if fields.text("model_type", "") == "deepseek_v32" else "interleaved"
    sizes = {"T": step.rows, "H": heads, "D": head_dim, "S": step.context}
    return (
        step.linear(heads * head_dim, fields.count("q_lora_rank")),
        step.plain(head_dim, width),
        step.plain(heads, width),
        use("layer_norm", step.dtype, {"T": step.rows, "D": head_dim}),
        step.rotary((heads, 1), head_dim, rope, page, style=style),
        use(
            "indexer_topk",
            step.dtype,
            sizes | {"K": fields.count("index_topk")},
            options={"keys": step.cache_rows, "candidates": "none"},
            attended=step.attended(),
        ),
    )


def mlps(step: Step, fields: ConfigFields, layers: tuple[int, ...]) -> tuple[LayerGroup, ...]:
    """Leading dense layers, then experts with their shared one."""
    width, num_dense = fields.count("hidden_size"), fields.count("first_k_dense_replace", 0)
    is_clamped = fields.has("swiglu_limit")
    norm = step.norm(width, residual=True)
    dense = step.mlp(width, fields.count("intermediate_size"), is_clamped=is_clamped)
    inner = fields.count("moe_intermediate_size")
    experts = step.experts(
        fields.count("n_routed_experts"),
        fields.count("num_experts_per_tok"),
        width,
        inner,
        score="sigmoid",
        groups=fields.count("n_group", 1),
    )
    shared = step.mlp(width, inner * fields.count("n_shared_experts"), is_clamped=is_clamped)
    groups = [layer_group("experts", layers[num_dense:], (norm, *experts, *shared))]
    if num_dense:
        groups.insert(0, layer_group("dense MLP", layers[:num_dense], (norm, *dense)))
    return tuple(groups)
