"""What ranks exchange in a step under a layout, and how many bytes leave each.

N ranks, T rows of the step, h hidden size: a row is 2h bytes in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kernels.cost_model.exchange import Operation, wire_ratio
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelFacts
from llm_engine.plan.search.prediction import StepSize

After = Literal["project", "attend", "mlp", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """`count` equal exchanges among n ranks, each behind a part of a layer or of the whole step.

    Units: bytes, as `Exchange.seconds` takes them.
    """

    operation: Operation
    size_bytes: float
    n: int
    count: float
    after: After = "step"

    @property
    def sent_bytes(self) -> float:
        """Bytes that leave one rank in all of them."""
        if self.operation == "send":
            return self.count * self.size_bytes
        times = 2 if self.operation == "all_reduce" else 1
        return self.count * times * (self.n - 1) / self.n * self.size_bytes


def distinct_ranks(n: int, top_k: int) -> float:
    """Ranks that hold at least one of a row's experts: N (1 - (1 - 1/N)^top)."""
    return n * (1 - (1 - 1 / n) ** top_k)


def transfers(
    facts: ModelFacts, layout: Layout, size: StepSize, kv_row_bytes: float, item_bytes: int = 2
) -> tuple[Transfer, ...]:
    """Everything that the ranks of one stage exchange in a step.

    `kv_row_bytes`: cached bytes of one token in all layers.
    """
    ratio = wire_ratio(layout.wire)
    found: list[Transfer] = []
    for num_layers, num_moe, rows in _layer_runs(facts, size):
        row_bytes = facts.hidden * item_bytes * ratio
        found += _layers(
            facts, layout, num_layers / layout.pp, num_moe / layout.pp, rows * row_bytes
        )
    found += _cached_rows(facts, layout, size, kv_row_bytes / layout.pp)
    if layout.kv_shard > 1 and size.phase == "decode":
        found += _merges(facts, layout, size, item_bytes)
    if layout.pp > 1:
        boundary = size.rows * facts.hidden * facts.row_streams * item_bytes / layout.width
        found.append(Transfer(operation="send", size_bytes=boundary, n=2, count=1))
    return tuple(t for t in found if t.n > 1 and t.count > 0 and t.size_bytes > 0)


def _layer_runs(facts: ModelFacts, size: StepSize) -> Iterator[tuple[int, int, int]]:
    """Layers, those with experts, and the rows that they compute."""
    dense = facts.num_layers - facts.num_moe_layers if facts.num_experts else 0
    has_moe = facts.num_experts > 0
    if size.phase == "decode" or facts.full_layers == facts.num_layers:
        yield facts.num_layers, (facts.num_layers - dense) if has_moe else 0, size.rows
        return
    behind = facts.num_layers - facts.full_layers
    yield facts.full_layers, facts.full_layers - dense, size.rows
    yield behind, behind, min(size.rows, facts.window)


def _layers(
    facts: ModelFacts, layout: Layout, num_layers: float, num_moe: float, step_bytes: float
) -> Iterator[Transfer]:
    """Reductions of attention, then what experts (or a dense MLP) need."""
    t, n = layout.tp, layout.width
    own_bytes = step_bytes / (layout.cp * layout.dp)
    heads = Transfer(
        operation="all_reduce", size_bytes=own_bytes, n=t, count=num_layers, after="attend"
    )
    yield heads
    if layout.experts in ("local", "dense"):  # MLPs and shared experts are cut by channels
        yield replace(heads, after="mlp")
        return
    yield replace(heads, count=num_layers - num_moe, after="mlp")

    def of_experts(operation: Operation, size_bytes: float, after: After) -> Transfer:
        return Transfer(operation=operation, size_bytes=size_bytes, n=n, count=num_moe, after=after)

    match layout.experts:
        case "columns" | "reduce":
            yield of_experts("all_reduce", step_bytes, "mlp")
        case "gather":
            yield of_experts("all_gather", step_bytes, "attend")
            yield of_experts("reduce_scatter", step_bytes, "mlp")
        case _:
            leaving = distinct_ranks(n, facts.top_k) * step_bytes / n
            yield of_experts("all_to_all", leaving, "attend")
            yield of_experts("all_to_all", leaving, "mlp")


def _cached_rows(
    facts: ModelFacts, layout: Layout, size: StepSize, kv_row_bytes: float
) -> Iterator[Transfer]:
    """Rows of the step that other ranks' queries read, and earlier rows that are spread out.

    In every layer: new rows over the ranks that divide the tokens of a prompt, earlier ones over
    those that divide the cache, since each query may read any row.
    """
    if size.phase != "prefill":
        return
    layers = facts.num_layers / layout.pp

    def gathered(tokens: int, n: int) -> Transfer:
        layer_bytes = tokens * kv_row_bytes / layers
        return Transfer(
            operation="all_gather", size_bytes=layer_bytes, n=n, count=layers, after="project"
        )

    if layout.key_ranks > 1:
        # In each turn a layer of every stage; a head that several ranks need goes to all of them.
        heads = min(layout.key_ranks, facts.kv_heads)
        own_bytes = size.rows * kv_row_bytes / layers * layout.pp / heads
        yield Transfer(
            operation="all_to_all", size_bytes=own_bytes, n=layout.key_ranks, count=layers
        )
    yield gathered(size.rows, layout.cp)
    yield gathered(size.context - size.rows, layout.kv_shard)


def _merges(
    facts: ModelFacts, layout: Layout, size: StepSize, item_bytes: int
) -> Iterator[Transfer]:
    """Queries go to every shard of the cache, and partial results are summed.

    A query of a head is counted as 576 values, its result as 512: the widest of the families.
    """
    rows = size.batch / layout.dp
    heads = facts.num_heads / layout.tp * layout.kv_shard
    count, n = facts.num_layers / layout.pp, layout.kv_shard
    queries, results = rows * heads * 576 * item_bytes, rows * heads * 512 * item_bytes
    yield Transfer(operation="all_gather", size_bytes=queries, n=n, count=count)
    yield Transfer(operation="reduce_scatter", size_bytes=results, n=n, count=count)
