"""What one call of an op costs at least: work, traffic, and the weights behind it.

By op name and case alone, whether or not a kernel of that name exists, so that a plan weighs what
is missing as well. A spec states the floor of its own kernel; this table is the planner's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernels.spec import ITEM_BYTES, Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one call. Units: operations (a multiply-add is two), bytes, numbers of weights."""

    flops: float
    read_write_bytes: float
    parameters: int = 0
    weight_bytes: float = 0.0


_Formula = Callable[[Case, float | None], Cost]


def cost_of(op: str, case: Case, attended: float | None = None) -> Cost:
    """The cost of one call. `attended`: mean rows that a query looks at; None: all of them.

    Raises:
        KeyError: no formula for the op; lists those there are.
    """
    if op not in COSTS:
        raise KeyError(f"no cost formula for {op!r}; there are: {', '.join(sorted(COSTS))}")
    return COSTS[op](case, attended)


def _item(case: Case) -> float:
    return ITEM_BYTES[case.dtype]


def _matmul(case: Case, weight_item: float) -> Cost:
    m, n, k = case.sizes["M"], case.sizes["N"], case.sizes["K"]
    weights = n * k * weight_item
    moved = m * k * min(weight_item, _item(case)) + m * n * _item(case)
    return Cost(
        flops=2.0 * m * n * k,
        read_write_bytes=weights + moved,
        parameters=n * k,
        weight_bytes=weights,
    )


def _gemm(case: Case, attended: float | None) -> Cost:
    del attended
    return _matmul(case, _item(case))


def _block_fp8_gemm(case: Case, attended: float | None) -> Cost:
    del attended
    return _matmul(case, 1.0)


def _pointwise(rows: str, width: str, flops: float, streams: float) -> _Formula:
    """`flops` operations and `streams` reads or writes for each value of rows x width."""

    def formula(case: Case, attended: float | None) -> Cost:
        del attended
        count = case.sizes[rows] * case.sizes[width]
        extra = 2 if case.options.get("residual") == "yes" else 0
        return Cost(flops=flops * count, read_write_bytes=(streams + extra) * count * _item(case))

    return formula


def _rotary_insert(case: Case, attended: float | None) -> Cost:
    del attended
    count = case.sizes["T"] * (case.sizes["H"] + case.sizes["K"]) * case.sizes["D"]
    return Cost(flops=6.0 * count, read_write_bytes=2 * count * _item(case))


def _attention(rows: str) -> _Formula:
    def formula(case: Case, attended: float | None) -> Cost:
        sizes, item = case.sizes, _item(case)
        seen = sizes["S"] if attended is None else attended
        queries = sizes[rows] * sizes["H"] * sizes["D"]
        keys = sizes["S"] if rows == "T" else sizes[rows] * seen
        cached = 2 * keys * sizes["K"] * sizes["D"] * item
        return Cost(flops=4.0 * queries * seen, read_write_bytes=2 * queries * item + cached)

    return formula


def _full_attention(case: Case, attended: float | None) -> Cost:
    del attended
    s, n, width = case.sizes["S"], case.sizes["N"], case.sizes["H"] * case.sizes["D"]
    return Cost(flops=4.0 * s * n * width, read_write_bytes=2.0 * (s + n) * width * _item(case))


def _moe_gemm(case: Case, attended: float | None) -> Cost:
    del attended
    sizes = case.sizes
    per_expert = 3 * sizes["D"] * sizes["I"]
    weight_item = ITEM_BYTES[case.options.get("weights", "bf16")]
    touched = sizes["E"] * (1 - (1 - sizes["k"] / sizes["E"]) ** sizes["T"])
    moved = 2 * sizes["T"] * sizes["D"] * _item(case)
    return Cost(
        flops=2.0 * sizes["T"] * sizes["k"] * per_expert,
        read_write_bytes=touched * per_expert * weight_item + moved,
        parameters=sizes["E"] * per_expert,
        weight_bytes=sizes["E"] * per_expert * weight_item,
    )


def _sparse_shared_kv(case: Case, attended: float | None) -> Cost:
    sizes = case.sizes
    seen = sizes["W"] + sizes["K"] if attended is None else attended
    queries = sizes["T"] * sizes["H"] * sizes["D"]
    row_bytes = 584 if case.options.get("rows") == "fp8" else sizes["D"] * _item(case)
    gathered = sizes["T"] * seen * row_bytes
    return Cost(flops=4.0 * queries * seen, read_write_bytes=2 * queries * _item(case) + gathered)


def _sparse_mla(case: Case, attended: float | None) -> Cost:
    sizes = case.sizes
    seen = sizes["K"] if attended is None else attended
    heads = sizes["T"] * sizes["H"]
    width = 2 * sizes["L"] + sizes["R"]
    row_bytes = 656 if case.options.get("cache") == "fp8" else (sizes["L"] + sizes["R"]) * 2
    moved = heads * width * _item(case) + sizes["T"] * seen * row_bytes
    return Cost(flops=2.0 * heads * width * seen, read_write_bytes=moved)


def _indexer_topk(case: Case, attended: float | None) -> Cost:
    sizes = case.sizes
    seen = sizes["S"] if attended is None else attended
    queries = sizes["T"] * sizes["H"] * sizes["D"]
    key_bytes = sizes["D"] * ITEM_BYTES[case.options.get("keys", "bf16")]
    moved = queries * _item(case) + sizes["S"] * key_bytes + 4 * sizes["T"] * sizes["K"]
    return Cost(flops=2.0 * queries * seen, read_write_bytes=moved)


def _hyper_connections(case: Case, attended: float | None) -> Cost:
    """N streams of width D: mixing GEMM, Sinkhorn, collapse and expansion, streams moved thrice."""
    del attended
    rows, streams, width = case.sizes["T"], case.sizes["N"], case.sizes["D"]
    mixes = streams * (streams + 2)
    flops = 2.0 * rows * (mixes * streams * width + mixes * width)
    return Cost(
        flops=flops,
        read_write_bytes=3.0 * rows * streams * width * _item(case),
        parameters=mixes * streams * width,
        weight_bytes=4.0 * mixes * streams * width,
    )


def _attention_epilogue(case: Case, attended: float | None) -> Cost:
    """Inverse rotation and the grouped projection H·D -> G·L, each group from its own heads."""
    del attended
    sizes = case.sizes
    weights = sizes["H"] * sizes["D"] * sizes["L"]
    item = 1.0 if case.options.get("weights") == "fp8" else _item(case)
    moved = sizes["T"] * (sizes["H"] * sizes["D"] + sizes["G"] * sizes["L"]) * _item(case)
    return Cost(
        flops=2.0 * sizes["T"] * weights,
        read_write_bytes=weights * item + moved,
        parameters=weights,
        weight_bytes=weights * item,
    )


def _kda(case: Case, attended: float | None) -> Cost:
    """Gated delta rule: decay, update and read of an H x D x D state in fp32 for each token."""
    del attended
    state = case.sizes["H"] * case.sizes["D"] ** 2
    moved = 4 * case.sizes["T"] * case.sizes["H"] * case.sizes["D"] * _item(case)
    return Cost(flops=7.0 * case.sizes["T"] * state, read_write_bytes=8.0 * state + moved)


def _engram(case: Case, attended: float | None) -> Cost:
    """T tokens read N rows of D bytes each from a table of E rows kept on the host."""
    del attended
    sizes = case.sizes
    row_bytes = sizes["D"] + sizes["D"] // 32
    return Cost(
        flops=2.0 * sizes["T"] * sizes["N"] * sizes["D"],
        read_write_bytes=float(sizes["T"] * sizes["N"] * row_bytes),
        parameters=sizes["E"] * sizes["D"],
        weight_bytes=float(sizes["E"] * row_bytes),
    )


def _module(case: Case, attended: float | None) -> Cost:
    """A whole network taken as one: T rows through P weights."""
    del attended
    rows, weights = case.sizes["T"], case.sizes["P"]
    item = _item(case)
    return Cost(
        flops=2.0 * rows * weights,
        read_write_bytes=weights * item,
        parameters=weights,
        weight_bytes=weights * item,
    )


COSTS: Mapping[str, _Formula] = {
    "gemm": _gemm,
    "block_fp8_gemm": _block_fp8_gemm,
    "rms_norm": _pointwise("T", "D", 4.0, 2.0),
    "layer_norm": _pointwise("T", "D", 6.0, 2.0),
    "rotary_insert": _rotary_insert,
    "swiglu": _pointwise("T", "I", 5.0, 3.0),
    "gelu": _pointwise("T", "I", 8.0, 2.0),
    "adaln_modulate": _pointwise("T", "C", 8.0, 2.0),
    "paged_prefill": _attention("T"),
    "paged_decode": _attention("B"),
    "full_attention": _full_attention,
    "moe_gemm": _moe_gemm,
    "moe_router": _pointwise("T", "E", 8.0, 2.0),
    "sparse_shared_kv": _sparse_shared_kv,
    "sparse_mla": _sparse_mla,
    "indexer_topk": _indexer_topk,
    "sampler": _pointwise("B", "V", 8.0, 2.0),
    "hyper_connections": _hyper_connections,
    "kv_compressor": _pointwise("T", "C", 8.0, 3.0),
    "attention_epilogue": _attention_epilogue,
    "kda": _kda,
    "engram": _engram,
    "vision_tower": _module,
    "text_encoder": _module,
    "vae_encode": _module,
    "vae_decode": _module,
}
