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
            seconds = _seconds(use, part, layout, size, rates) * (layers * use.count)
            found[part] = found[part] + seconds if part in found else seconds
    return StageWork(**found)


def is_mlp(group: LayerGroup) -> bool:
    """Whether these are layers' MLPs: uses without attention."""
    return bool(group.layers) and _ATTENTION.isdisjoint(use.op for use in group.uses)


def _parts_of(group: LayerGroup) -> Iterator[tuple[OpUse, str]]:
    """Each use with its part; a group without attention is an MLP's, in the order of a layer."""
    if is_mlp(group) or not group.layers:
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


def _seconds(use: OpUse, part: str, layout: Layout, size: StepSize, rates: DeviceRates) -> Parts:
    if use.op == "moe_gemm":
        return _experts_s(use, layout, size, rates)
    flops, moved, rows = _share(use, part, layout, size, rates)
    return _longer(use, flops, moved, rows, rates)


def _longer(use: OpUse, flops: float, moved: float, rows: float, rates: DeviceRates) -> Parts:
    """Operations or traffic, whichever takes longer."""
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
    use: OpUse, part: str, layout: Layout, size: StepSize, rates: DeviceRates
) -> tuple[float, float, float]:
    """The fullest rank's operations, bytes, and rows of a product (0: no product)."""
    share = layout.row_share(size.rows, size.batch)
    heads = layout.tp if use.is_cut else 1
    if use.is_cut and part == "mlp" and layout.shares_mlps:
        share, heads = 1.0, layout.width
    if use.op in _ATTENTION and use.is_cut and (num := use.case.sizes.get("H")):
        tile = rates.sparse_heads if use.op in _GATHERED else _TILE_HEADS
        heads = num / max(num / layout.tp, min(tile, num))
    weights = use.cost.weight_bytes
    moved = use.cost.read_write_bytes - weights
    keys = _index_key_bytes(use)
    is_decode = size.phase == "decode"
    # The formula has the keys of one sequence; a rank reads those of each that it has rows of.
    own_keys = keys * math.ceil(size.batch / layout.dp)
    shard = layout.kv_shard if use.op in _ATTENTION and is_decode else 1
    # One row serves all heads, so every rank of a sequence gathers the same rows. In a prompt
    # neighbouring queries pick mostly the same ones, which a second level of cache then holds.
    readers = heads
    if use.op in _GATHERED:
        readers = 1 if is_decode else layout.tp
    if use.op in _HOST_OPS:
        weights = 0.0
    rows = use.case.sizes.get("M", 0) * share
    flops = use.cost.flops * share / (heads * shard)
    moved = ((moved - keys) * share + own_keys) / (readers * shard)
    return flops, moved + weights / heads, rows


def _index_key_bytes(use: OpUse) -> float:
    """Keys that the formula counts once for a call, whatever its rows."""
    if use.op != "indexer_topk":
        return 0.0
    sizes = use.case.sizes
    return sizes["S"] * sizes["D"] * ITEM_BYTES[use.case.options.get("keys", "bf16")]


def _experts_s(use: OpUse, layout: Layout, size: StepSize, rates: DeviceRates) -> Parts:
    """Products of the fullest rank's experts, and the pass that sums what each row's gave."""
    sizes = use.case.sizes
    num, top_k, tokens = sizes["E"], sizes["k"], sizes["T"]
    row_bytes = sizes["D"] * ITEM_BYTES[use.case.dtype]
    activations = 2 * tokens * row_bytes
    read = use.cost.read_write_bytes - activations
    n, pairs = layout.width, tokens * top_k
    if layout.experts == "local":
        share = layout.row_share(size.rows, size.batch)
        flops, moved, rows = use.cost.flops * share, read + activations * share, pairs * share
        summed = (pairs + tokens) * share
    elif layout.experts == "columns":  # every rank has its part of every expert: none is fuller
        flops, moved, rows = use.cost.flops / n, (read + activations) / n, pairs
        summed = pairs + tokens
    else:
        flops = use.cost.flops / n * imbalance(pairs, n)
        moved, rows = (read * imbalance(min(num, pairs), n) + activations) / n, pairs
        summed = pairs / n * imbalance(pairs, n) + tokens
    products = _longer(use, flops, moved, max(rows / num, 1.0), rates)
    return products + Parts(memory=summed * row_bytes / rates.memory_bytes_s)


def imbalance(draws: float, n: int) -> float:
    """The fullest of n ranks against the mean when rows choose at random; published: 1.2 to 1.5.

    Mean plus two standard deviations of a binomial draw, never above n, and at least 1.2: routers
    are not uniform.
    """
    if n == 1:
        return 1.0
    mean = draws / n
    return min(float(n), max(1.2, 1 + 2 * math.sqrt((1 - 1 / n) / max(mean, 1 / n))))
