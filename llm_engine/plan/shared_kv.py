"""What deepseek_v4 and deepseek_v41 share: one 512-wide row that serves as key and value.

Sizes: W window rows, K gathered rows, G output groups, L their rank, N residual streams.
"""

from __future__ import annotations

from kernels.layer_groups import OpUse, RowGroup, use
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.step import Step


def logical_page(request: PlanRequest, largest_ratio: int, preferred: int = 256) -> int:
    """Tokens of a page: whole rows of every group, so a multiple of the largest ratio.

    256 tokens are 64 rows of four tokens each and 2 rows of 128.
    """
    page = request.vendor_page or preferred
    return -(-page // largest_ratio) * largest_ratio


def window_rows(fields: ConfigFields, layers: tuple[int, ...], row_bytes: int) -> RowGroup:
    """The last rows of a sequence, kept in a ring of their own."""
    window = fields.count("sliding_window")
    return RowGroup(
        name="window",
        layers=layers,
        row_bytes=row_bytes,
        tokens_per_row=0,
        fixed_rows=window,
        page_tokens=min(64, window),
        reason="a ring in a pool of small pages: its size does not grow with the sequence",
    )


def hyper_connections(step: Step, fields: ConfigFields) -> OpUse:
    """Both sites of a layer: mix the streams, collapse them, norm (and quantise) the input."""
    sizes = {"T": step.rows, "N": fields.count("hc_mult"), "D": fields.count("hidden_size")}
    return use("hyper_connections", step.dtype, sizes, options=step.quant, count=2)


def attention(
    step: Step, fields: ConfigFields, *, gathered: int, visible: float, page: int
) -> tuple[OpUse, ...]:
    """Projections, attention over the window and `gathered` rows, grouped output projection.

    `visible` is the mean number of gathered rows that a query attends to.
    """
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim, rank = fields.count("head_dim"), fields.count("q_lora_rank")
    window = fields.count("sliding_window")
    sizes = {"T": step.rows, "H": heads, "D": head_dim, "W": window, "K": gathered, "page": page}
    options = {"phase": step.phase, "rows": step.cache_rows, "sink": "yes"}
    seen = step.attended(at_most=window) + visible
    rotary = step.rotary(
        (heads, 1), head_dim, fields.count("qk_rope_head_dim"), page,
        style="interleaved", has_norm=True,
    )  # fmt: skip
    return (
        step.linear(rank, width),
        step.linear(head_dim, width),
        step.norm(rank),
        step.linear(heads * head_dim, rank, is_cut=True),
        rotary,
        use("sparse_shared_kv", step.dtype, sizes, options=options, attended=seen),
        *_output(step, fields),
    )


def _output(step: Step, fields: ConfigFields) -> tuple[OpUse, ...]:
    groups, rank = fields.count("o_groups"), fields.count("o_lora_rank")
    sizes = {
        "T": step.rows,
        "H": fields.count("num_attention_heads"),
        "D": fields.count("head_dim"),
        "R": fields.count("qk_rope_head_dim"),
        "G": groups,
        "L": rank,
    }
    weights = {"weights": "fp8"} if step.block else {}
    epilogue = use("attention_epilogue", step.dtype, sizes, options=weights | step.quant)
    back = step.linear(fields.count("hidden_size"), groups * rank, is_cut=True)
    return (epilogue, back)


def compressor(
    step: Step, fields: ConfigFields, width: int, *, ratio: int, num_series: int
) -> tuple[OpUse, ...]:
    """Pooling of `ratio` tokens into one row of `width`: values and gates of each series."""
    products = 2 * num_series if ratio > 1 else 1
    sizes = {"T": step.rows, "C": width * num_series, "m": ratio}
    return (
        step.plain(products * width, fields.count("hidden_size")),
        use("kv_compressor", step.dtype, sizes, options={"cache": step.cache_rows}),
    )


def index_queries(step: Step, fields: ConfigFields) -> tuple[OpUse, ...]:
    """Queries of the indexer from the query latent, and the weight of each of its heads."""
    heads, head_dim = fields.count("index_n_heads"), fields.count("index_head_dim")
    rotated = fields.count("qk_rope_head_dim")
    return (
        step.linear(heads * head_dim, fields.count("q_lora_rank")),
        step.plain(heads, fields.count("hidden_size")),
        step.rotary((heads, 1), head_dim, rotated, 0, style="interleaved", is_cached=False),
    )


def topk(step: Step, fields: ConfigFields, ratio: int, *, candidates: bool = False) -> OpUse:
    """The best rows of `ratio` tokens each for every query, all rows or candidate blocks only."""
    rows = -(-step.context // ratio)
    seen = step.attended(ratio)
    if candidates:
        most = fields.count("candidate_topk_blocks") * fields.count("candidate_block_size")
        seen = min(seen, float(most))
    sizes = {
        "T": step.rows,
        "H": fields.count("index_n_heads"),
        "D": fields.count("index_head_dim"),
        "S": rows,
        "K": fields.count("index_topk"),
    }
    options = {"keys": step.cache_rows, "candidates": "yes" if candidates else "none"}
    return use("indexer_topk", step.dtype, sizes, options=options, attended=seen)


def experts(step: Step, fields: ConfigFields, score: str) -> tuple[OpUse, ...]:
    """Router, routed experts, and the shared expert with the same clamp."""
    width, inner = fields.count("hidden_size"), fields.count("moe_intermediate_size")
    routed = step.experts(
        fields.count("n_routed_experts"),
        fields.count("num_experts_per_tok"),
        width,
        inner,
        score=score,
    )
    shared = inner * fields.count("n_shared_experts")
    return (*routed, *step.mlp(width, shared, is_clamped=fields.has("swiglu_limit")))
