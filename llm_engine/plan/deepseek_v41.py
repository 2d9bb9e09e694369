"""deepseek_v41: encoder and decoder halves, rows shared across layers, Engram, single-pass mHC.

Prefill follows the bounded replay: the decoder half runs on the last window of a prompt alone,
because only the encoder half and the last key source build rows that later tokens read. A config
with `prefills_all_layers`, which no checkpoint has, describes an engine that does without.
"""

from __future__ import annotations

from dataclasses import replace

from kernels.layer_groups import LayerGroup, ModelShape, OpUse, RowGroup, use
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.plan import shared_kv
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.shape import layer_group, model_shape
from llm_engine.plan.step import Step

# Bytes of cached rows in the checkpoint's own formats; in bf16 a row takes two bytes a value.
_WINDOW_BYTES = 528  # 512 e4m3 and a scale for every 32
_ROW_BYTES = 288  # 512 e2m1 in 256 bytes and an e4m3 scale for every 16
_INDEX_BYTES = 68  # 128 e2m1 in 64 bytes and a scale for every 32
_PAGE_TOKENS = 256


def describe(fields: ConfigFields, request: PlanRequest) -> ModelShape:
    """The layers, op uses and cached rows of DeepSeek-V4.1."""
    ratios = fields.counts("compress_ratios")[: fields.count("num_hidden_layers")]
    page = shared_kv.logical_page(request, max(ratios), _PAGE_TOKENS)

    def groups(step: Step) -> tuple[LayerGroup, ...]:
        head = step.head(fields.count("hidden_size"), fields.count("vocab_size"))
        found = (*_attention(step, fields, ratios, page), *_experts(step, fields, len(ratios)))
        return (*found, *_engram(step, fields), *_vision(step, fields), head)

    return model_shape(
        fields,
        request,
        groups,
        _rows(fields, request, ratios, page),
        has_sparse_attention=True,
        choices=() if fields.flag("prefills_all_layers") else (_replay(fields),),
        notes=("the vision tower's sizes are not published: it counts as no work and no weights",),
    )


def _replay(fields: ConfigFields) -> Decision:
    last = max(fields.counts("kv_source_layer_ids"))
    return Decision(
        kind="layout",
        where=f"layers {last}-{fields.count('num_hidden_layers') - 1}, prefill",
        what="decoder half",
        asked="auto",
        chosen="bounded replay",
        tier=Tier.FUSED,
        source="default",
        reasons=(
            f"the last key source is layer {last}: layers behind it keep window rows only, so "
            "they run on the last window of each prompt",
        ),
        rejected=(
            Rejection(candidate="all rows", reasons=("twice the work; equal within a tolerance",)),
        ),
        evidence="unverified: the error of the replay has not been measured",
    )


def _half(step: Step, fields: ConfigFields) -> Step:
    """The step as the decoder half sees it."""
    if fields.flag("prefills_all_layers"):
        return step
    rows = min(step.rows, step.batch * fields.count("sliding_window"))
    return replace(step, rows=rows) if step.is_prefill else step


def _is_decoder(fields: ConfigFields, layer: int) -> bool:
    return layer >= max(fields.counts("kv_source_layer_ids"))


def _role(fields: ConfigFields, ratios: tuple[int, ...], layer: int) -> str:
    if not ratios[layer]:
        return "window attention"
    if layer in fields.counts("kv_source_layer_ids"):
        return "sparse attention, own rows"
    if layer in fields.counts("index_source_layer_ids"):
        return "sparse attention, own index queries"
    return "sparse attention, rows and indices reused"


def _attention(
    step: Step, fields: ConfigFields, ratios: tuple[int, ...], page: int
) -> tuple[LayerGroup, ...]:
    kinds: dict[tuple[str, bool], list[int]] = {}
    for layer in range(len(ratios)):
        kind = _role(fields, ratios, layer), _is_decoder(fields, layer)
        kinds.setdefault(kind, []).append(layer)
    return tuple(
        layer_group(role, layers, _layer(step, fields, role, layers[0], ratios, page))
        for (role, _), layers in kinds.items()
    )


def _layer(
    step: Step, fields: ConfigFields, role: str, layer: int, ratios: tuple[int, ...], page: int
) -> tuple[OpUse, ...]:
    """Attention of one layer; a key source builds its rows from every token of the step."""
    ratio, is_decoder = ratios[layer], _is_decoder(fields, layer)
    own = _half(step, fields) if is_decoder else step
    chosen = fields.count("index_topk") if ratio else 0
    uses = [shared_kv.hyper_connections(own, fields)]
    uses += shared_kv.attention(
        own,
        fields,
        gathered=chosen,
        visible=own.attended(ratio, at_most=chosen) if ratio else 0.0,
        page=page // ratio if ratio else 64,
    )
    if role.endswith("own rows"):
        width, index_dim = fields.count("head_dim"), fields.count("index_head_dim")
        uses += shared_kv.compressor(step, fields, width, ratio=ratio, num_series=1)
        uses.append(step.plain(index_dim, width))
    if role.endswith(("own rows", "own index queries")):
        is_filtered = layer > fields.count("candidate_source_layer_id")
        uses += shared_kv.index_queries(own, fields)
        uses.append(shared_kv.topk(own, fields, ratio, candidates=is_filtered))
    return tuple(uses)


def _experts(step: Step, fields: ConfigFields, num_layers: int) -> tuple[LayerGroup, ...]:
    score = fields.text("scoring_func", "sqrtsoftplus")
    split = max(fields.counts("kv_source_layer_ids"))
    half = _half(step, fields)
    return (
        layer_group("experts", range(split), shared_kv.experts(step, fields, score)),
        layer_group("experts", range(split, num_layers), shared_kv.experts(half, fields, score)),
    )


def _engram(step: Step, fields: ConfigFields) -> tuple[LayerGroup, ...]:
    """Rows of the n-gram tables on the host, projected to a key for each stream and one value."""
    layers = fields.counts("engram_layer_ids")
    if not layers:
        return ()
    num_rows = (fields.count("engram_max_ngram_size") - 1) * fields.count("engram_n_heads")
    row_width, width = fields.count("engram_head_dim"), fields.count("hidden_size")
    table = fields.counts("engram_num_embeddings")[0]
    sizes = {"T": step.rows, "N": num_rows, "D": row_width, "E": table}
    lookup = use("engram", step.dtype, sizes, options={"rows": "fp8"})
    keys = step.linear((fields.count("hc_mult") + 1) * width, num_rows * row_width)
    return (layer_group("engram", layers, (lookup, keys)),)


def _vision(step: Step, fields: ConfigFields) -> tuple[LayerGroup, ...]:
    depth = fields.vision.get("num_hidden_layers", 0)
    if not depth:
        return ()
    sizes = {"T": 0, "P": 0, "layers": int(depth)}
    tower = use("vision_tower", step.dtype, sizes)
    return (LayerGroup(name="vision tower, for each picture", layers=(), uses=(tower,)),)


def _rows(
    fields: ConfigFields, request: PlanRequest, ratios: tuple[int, ...], page: int
) -> tuple[RowGroup, ...]:
    is_own = request.cache == "fp8"
    row = 2 * fields.count("head_dim")
    window = shared_kv.window_rows(
        fields, tuple(range(len(ratios))), _WINDOW_BYTES if is_own else row
    )
    sizes = {
        "shared rows": _ROW_BYTES if is_own else row,
        "indexer keys": _INDEX_BYTES if is_own else 2 * fields.count("index_head_dim"),
    }
    sources = fields.counts("kv_source_layer_ids")
    groups: list[RowGroup] = [window]
    for ratio in sorted({ratios[layer] for layer in sources}):
        layers = tuple(layer for layer in sources if ratios[layer] == ratio)
        for name, size in sizes.items():
            groups.append(
                RowGroup(
                    name=f"{name}, {ratio} tokens each",
                    layers=layers,
                    row_bytes=size,
                    tokens_per_row=ratio,
                    page_tokens=page,
                    reason=f"{page} tokens are {page // ratio} rows of this group",
                )
            )
    return tuple(groups)
