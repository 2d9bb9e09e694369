"""What one rank computes in a step under a layout: seconds by cause."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.cost_model.parts import Parts
from kernels.spec import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernels.cost_model.rates import DeviceRates
    from kernels.layer_groups import LayerGroup, ModelShape, OpUse
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.prediction import StepSize

_ATTENTION = frozenset(
    ["paged_prefill", "paged_decode", "sparse_shared_kv", "sparse_mla", "indexer_topk", "kda"]
)
_GATHERED = frozenset(["sparse_shared_kv", "sparse_mla"])
_TILE_HEADS = 16  # rows of a matrix unit's tile: fewer heads of a rank leave part of it idle
_HOST_OPS = frozenset(["engram"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Seconds of one rank of one stage, by the part of a layer: computation and memory only.

    `project` is up to queries, keys and values, `attend` from there to the end of attention, `mlp`
    the rest of a layer, `head` what runs once outside the layers.
    """

    project: Parts = field(default_factory=Parts)
    attend: Parts = field(default_factory=Parts)
    mlp: Parts = field(default_factory=Parts)
    head: Parts = field(default_factory=Parts)

    @property
    def total(self) -> Parts:
        """All of them."""
        return self.project + self.attend + self.mlp + self.head


def stage_work(shape: ModelShape, layout: Layout, size: StepSize, rates: DeviceRates) -> StageWork:
    """What one rank of one stage computes."""
    found: dict[str, Parts] = {}
    for group in shape.phase(size.phase).groups:
        layers = stage_layers(group, layout)
        for use, part in _parts_of(group):
            seconds = _seconds(use, layout, size, rates) * (layers * use.count)
            found[part] = found[part] + seconds if part in found else seconds
    return StageWork(**found)


def _parts_of(group: LayerGroup) -> Iterator[tuple[OpUse, str]]:
    """Each use with its part; a group without attention is an MLP's, in the order of a layer."""
    if not any(use.op in _ATTENTION for use in group.uses):
        yield from ((use, "mlp" if group.layers else "head") for use in group.uses)
        return
    part = "project"
    for use in group.uses:
        part = "attend" if use.op in _ATTENTION else part
        yield use, part


def stage_layers(group: LayerGroup, layout: Layout) -> float:
    """Layers of a group that the fullest stage has."""
    if not group.layers:
        return 1.0
    return math.ceil(len(group.layers) / layout.pp) if layout.pp > 1 else float(len(group.layers))


def _seconds(use: OpUse, layout: Layout, size: StepSize, rates: DeviceRates) -> Parts:
    flops, moved, rows = _share(use, layout, size, rates)
    peak = _peak(use, rates)
    filled = rows / (rows + rates.half_rows) if rows else 1.0
    flops_s, memory_s = flops / (peak * filled), moved / rates.memory_bytes_s
    if memory_s >= flops_s:
        return Parts(latency=rates.start_s, memory=memory_s)
    if use.op in _ATTENTION:
        return Parts(latency=rates.start_s, attention=flops_s)
    return Parts(latency=rates.start_s, gemm=flops_s)


def _peak(use: OpUse, rates: DeviceRates) -> float:
    if use.op in _GATHERED:
        return rates.sparse_flops_s
    if use.op == "indexer_topk":
        is_fp8 = use.case.options.get("keys") == "fp8"
        return rates.fp8_indexer_flops_s if is_fp8 else rates.indexer_flops_s
    if use.op in _ATTENTION:
        return rates.attention_flops_s
    if use.op == "moe_gemm":
        is_4bit = use.case.options.get("weights") == "mxfp4"
        return rates.expert_4bit_flops_s if is_4bit else rates.expert_flops_s
    return rates.fp8_flops_s if use.op == "block_fp8_gemm" else rates.dense_flops_s


def _share(
    use: OpUse, layout: Layout, size: StepSize, rates: DeviceRates
) -> tuple[float, float, float]:
    """A rank's operations, bytes, and rows of a product (0: no product)."""
    by_tokens = layout.cp * layout.dp
    if use.op == "moe_gemm":
        return _expert_share(use, layout, size)
    heads = layout.tp if use.is_cut else 1
    if use.op in _ATTENTION and use.is_cut and (num := use.case.sizes.get("H")):
        tile = rates.sparse_heads if use.op in _GATHERED else _TILE_HEADS
        heads = num / max(num / layout.tp, min(tile, num))
    weights = use.cost.weight_bytes
    moved = use.cost.read_write_bytes - weights
    keys = _index_key_bytes(use)
    if size.phase == "decode":
        moved += keys * (size.batch - 1)
    elif use.op == "indexer_topk":
        moved = (moved - keys) + keys * by_tokens
    is_decode = size.phase == "decode"
    shard = layout.kv_shard if use.op in _ATTENTION and is_decode else 1
    # One row serves all heads, so every rank of a sequence gathers the same rows. In a prompt
    # neighbouring queries pick mostly the same ones, which a second level of cache then holds.
    readers = 1 if use.op in _GATHERED and is_decode else heads
    if use.op in _HOST_OPS:
        weights = 0.0
    rows = use.case.sizes.get("M", 0) / by_tokens
    flops = use.cost.flops / (by_tokens * heads * shard)
    return flops, moved / (by_tokens * readers * shard) + weights / heads, rows


def _index_key_bytes(use: OpUse) -> float:
    """Keys that the formula counts once for a call, whatever its rows."""
    if use.op != "indexer_topk":
        return 0.0
    sizes = use.case.sizes
    return sizes["S"] * sizes["D"] * ITEM_BYTES[use.case.options.get("keys", "bf16")]


def _expert_share(use: OpUse, layout: Layout, size: StepSize) -> tuple[float, float, float]:
    """Experts divided over the stage's ranks; the fullest of them sets the time."""
    sizes = use.case.sizes
    num, top_k, tokens = sizes["E"], sizes["k"], sizes["T"]
    activations = 2 * tokens * sizes["D"] * ITEM_BYTES[use.case.dtype]
    read = use.cost.read_write_bytes - activations
    if layout.experts == "local":
        ranks = layout.cp * layout.dp
        rows = tokens / ranks * top_k / num
        return use.cost.flops / ranks, read + activations / ranks, max(rows, 1.0)
    n = layout.width
    if layout.experts == "columns":  # every rank has its part of every expert: none is fuller
        return use.cost.flops / n, (read + activations) / n, max(tokens * top_k / num, 1.0)
    return (
        use.cost.flops / n * imbalance(tokens * top_k, n),
        (read * imbalance(min(num, tokens * top_k), n) + activations) / n,
        max(tokens * top_k / num, 1.0),
    )


def imbalance(draws: float, n: int) -> float:
    """The fullest of n ranks against the mean when rows choose at random; published: 1.2 to 1.5.

    Mean plus two standard deviations of a binomial draw, never above n, and at least 1.2: routers
    are not uniform.
    """
    if n == 1:
        return 1.0
    mean = draws / n
    return min(float(n), max(1.2, 1 + 2 * math.sqrt((1 - 1 / n) / max(mean, 1 / n))))
