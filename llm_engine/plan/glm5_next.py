"""glm5_next, text part: gated delta rule (KDA) in most layers, else pooled sparse attention."""

from __future__ import annotations

from kernels.layer_groups import LayerGroup, ModelShape, OpUse, RowGroup, use
from llm_engine.errors import UnsupportedModel
from llm_engine.plan import mla, shared_kv
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.shape import layer_group, model_shape
from llm_engine.plan.step import Step

_STATE_ITEM_BYTES = 4


def describe(fields: ConfigFields, request: PlanRequest) -> ModelShape:
    """The layers, op uses, cached rows and states of the text part.

    Raises: UnsupportedModel when layer_types does not name every layer.
    """
    page = request.vendor_page or mla.PAGE_TOKENS
    kinds = fields.texts("layer_types")
    layers = tuple(range(fields.count("num_hidden_layers")))
    if len(kinds) != len(layers):
        raise UnsupportedModel(f"layer_types names {len(kinds)} of {len(layers)} layers")
    linear = tuple(layer for layer in layers if kinds[layer] == "linear_attention")
    sparse = tuple(layer for layer in layers if layer not in linear)

    def groups(step: Step) -> tuple[LayerGroup, ...]:
        streams = shared_kv.hyper_connections(step, fields)
        searching = (*mla.mla_attention(step, fields, page), *_indexer(step, fields))
        head = step.head(fields.count("hidden_size"), fields.count("vocab_size"))
        return (
            layer_group("linear attention", linear, (streams, *_linear(step, fields))),
            layer_group("sparse attention", sparse, (streams, *searching)),
            *mla.mlps(step, fields, layers),
            head,
        )

    latents = mla.latent_rows(fields, sparse, page, request)
    keys = RowGroup(
        name="pooled indexer keys",
        layers=sparse,
        row_bytes=2 * fields.count("index_head_dim"),
        tokens_per_row=fields.count("index_kpool"),
        page_tokens=page,
        reason="as the latents: one table of pages serves both",
    )
    rows = (latents, keys, _state(fields, linear))
    return model_shape(
        fields,
        request,
        groups,
        rows,
        has_sparse_attention=True,
        notes=("the text part alone: the vision tower is not counted",),
    )


def _linear(step: Step, fields: ConfigFields) -> tuple[OpUse, ...]:
    """Projections, short convolution with SiLU, the recurrence, gated norm, output."""
    width = fields.count("hidden_size")
    heads, head_dim = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    inner = heads * head_dim
    sizes = {"T": step.rows, "H": heads, "D": head_dim}
    return (
        step.linear(inner, width, count=3, is_cut=True),
        step.plain(head_dim, width, count=2),
        step.plain(inner, head_dim, count=2, is_cut=True),
        step.plain(heads, width),
        use("kda", step.dtype, sizes, options={"phase": step.phase}),
        step.linear(width, inner, is_cut=True),
    )


def _indexer(step: Step, fields: ConfigFields) -> tuple[OpUse, ...]:
    """Pooled keys without rotation, and the choice of pools."""
    heads, head_dim = fields.count("index_n_heads"), fields.count("index_head_dim")
    width, pool = fields.count("hidden_size"), fields.count("index_kpool")
    sizes = {"T": step.rows, "H": heads, "D": head_dim, "S": -(-step.context // pool)}
    pooling = {"T": step.rows, "C": head_dim, "m": pool}
    return (
        step.linear(heads * head_dim, fields.count("q_lora_rank")),
        step.plain(head_dim, width, count=2),
        step.plain(heads, width),
        use("kv_compressor", step.dtype, pooling, options={"cache": step.cache_rows}),
        use(
            "indexer_topk",
            step.dtype,
            sizes | {"K": fields.count("index_topk") // pool},
            options={"keys": step.cache_rows, "candidates": "none"},
            attended=step.attended(pool),
        ),
    )


def _state(fields: ConfigFields, layers: tuple[int, ...]) -> RowGroup:
    heads, head_dim = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    return RowGroup(
        name="recurrent state",
        layers=layers,
        row_bytes=heads * head_dim * head_dim * _STATE_ITEM_BYTES,
        tokens_per_row=0,
        fixed_rows=1,
        page_tokens=1,
        reason="one state for each sequence, and one more for each stored prefix",
    )
