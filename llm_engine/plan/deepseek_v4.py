"""deepseek_v4: window, compressed-sparse (CSA) and heavily compressed (HCA) attention, mHC, MoE."""

from __future__ import annotations

from kernels.layer_groups import LayerGroup, ModelShape, OpUse, RowGroup
from llm_engine.errors import UnsupportedModel
from llm_engine.plan import shared_kv
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.shape import layer_group, model_shape
from llm_engine.plan.step import Step

_RATIO_OF_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_SPARSE, _HEAVY = 4, 128
_FP8_ROW_BYTES = 584  # 448 e4m3, 64 bf16 of rotation, 7 scales and padding
_FP8_INDEX_BYTES = 132  # 128 e4m3 and an fp32 scale


def describe(fields: ConfigFields, request: PlanRequest) -> ModelShape:
    """The layers, op uses and cached rows of DeepSeek-V4.

    Raises: UnsupportedModel when neither compress_ratios nor layer_types say what a layer is.
    """
    ratios = _ratios(fields)
    page = shared_kv.logical_page(request, max(ratios))

    def groups(step: Step) -> tuple[LayerGroup, ...]:
        head = step.head(fields.count("hidden_size"), fields.count("vocab_size"))
        return (*_attention(step, fields, ratios, page), *_mlps(step, fields, len(ratios)), head)

    rows = _rows(fields, request, ratios, page)
    return model_shape(fields, request, groups, rows, has_sparse_attention=True)


def _ratios(fields: ConfigFields) -> tuple[int, ...]:
    """Tokens a compressed row holds, by layer; 0 for the window alone."""
    num_layers = fields.count("num_hidden_layers")
    named = tuple(_RATIO_OF_TYPE.get(kind, -1) for kind in fields.texts("layer_types"))
    ratios = (fields.counts("compress_ratios") or named)[:num_layers]
    if len(ratios) != num_layers or not set(ratios) <= {0, _SPARSE, _HEAVY}:
        raise UnsupportedModel(
            f"compress_ratios {ratios} must name 0, {_SPARSE} or {_HEAVY} for each of "
            f"{num_layers} layers: the class default is another model's pattern"
        )
    return ratios


def _with_ratio(ratios: tuple[int, ...], ratio: int) -> tuple[int, ...]:
    return tuple(layer for layer, found in enumerate(ratios) if found == ratio)


def _attention(
    step: Step, fields: ConfigFields, ratios: tuple[int, ...], page: int
) -> tuple[LayerGroup, ...]:
    streams = shared_kv.hyper_connections(step, fields)
    uses = {
        0: shared_kv.attention(
            step, fields, gathered=0, visible=0, page=fields.count("sliding_window") // 2
        ),
        _SPARSE: _sparse(step, fields, page),
        _HEAVY: _heavy(step, fields, page),
    }
    names = {0: "window attention", _SPARSE: "sparse attention", _HEAVY: "compressed attention"}
    return tuple(
        layer_group(names[ratio], _with_ratio(ratios, ratio), (streams, *uses[ratio]))
        for ratio in names
        if ratio in ratios
    )


def _sparse(step: Step, fields: ConfigFields, page: int) -> tuple[OpUse, ...]:
    """CSA: two overlapping series of four tokens; the indexer picks the rows."""
    chosen, index_dim = fields.count("index_topk"), fields.count("index_head_dim")
    visible = step.attended(_SPARSE, at_most=chosen)
    rows = shared_kv.attention(step, fields, gathered=chosen, visible=visible, page=page // _SPARSE)
    head_dim = fields.count("head_dim")
    return (
        *rows,
        *shared_kv.compressor(step, fields, head_dim, ratio=_SPARSE, num_series=2),
        *shared_kv.index_queries(step, fields),
        *shared_kv.compressor(step, fields, index_dim, ratio=_SPARSE, num_series=2),
        shared_kv.topk(step, fields, _SPARSE),
    )


def _heavy(step: Step, fields: ConfigFields, page: int) -> tuple[OpUse, ...]:
    """HCA: windows of 128 tokens, all closed ones visible."""
    gathered = -(-step.context // _HEAVY)
    visible = step.attended(_HEAVY)
    rows = shared_kv.attention(
        step, fields, gathered=gathered, visible=visible, page=page // _HEAVY
    )
    head_dim = fields.count("head_dim")
    return (*rows, *shared_kv.compressor(step, fields, head_dim, ratio=_HEAVY, num_series=1))


def _mlps(step: Step, fields: ConfigFields, num_layers: int) -> tuple[LayerGroup, ...]:
    num_hash = fields.count("num_hash_layers", 0)
    score = fields.text("scoring_func", "sqrtsoftplus")
    groups = [
        layer_group("experts", range(num_hash, num_layers), shared_kv.experts(step, fields, score))
    ]
    if num_hash:
        uses = shared_kv.experts(step, fields, "hash")
        groups.insert(0, layer_group("experts by token table", range(num_hash), uses))
    return tuple(groups)


def _rows(
    fields: ConfigFields, request: PlanRequest, ratios: tuple[int, ...], page: int
) -> tuple[RowGroup, ...]:
    is_fp8 = request.cache == "fp8"
    row_bytes = _FP8_ROW_BYTES if is_fp8 else 2 * fields.count("head_dim")
    index_bytes = _FP8_INDEX_BYTES if is_fp8 else 2 * fields.count("index_head_dim")
    sparse, heavy = _with_ratio(ratios, _SPARSE), _with_ratio(ratios, _HEAVY)
    reason = (
        f"{page} tokens are {page // _SPARSE} sparse rows, {page // _SPARSE} indexer rows and "
        f"{page // _HEAVY} compressed rows: whole rows of every group"
    )

    def growing(name: str, layers: tuple[int, ...], size: int, ratio: int) -> RowGroup:
        return RowGroup(
            name=name,
            layers=layers,
            row_bytes=size,
            tokens_per_row=ratio,
            page_tokens=page,
            reason=reason,
        )

    return (
        shared_kv.window_rows(fields, tuple(range(len(ratios))), row_bytes),
        growing("sparse rows", sparse, row_bytes, _SPARSE),
        growing("indexer keys", sparse, index_bytes, _SPARSE),
        growing("compressed rows", heavy, row_bytes, _HEAVY),
    )
