"""What ranks exchange in a step under a layout, and how many bytes leave each.

N ranks, T rows of the step, h hidden size: a row is 2h bytes in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernels.cost_model.exchange import Operation, wire_ratio
from llm_engine.plan.search.key_exchange import key_transfers
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelFacts
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.transfer import After, Transfer


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
        one = replace(size, rows=rows)
        found += _layers(
            facts, layout, one, (num_layers / layout.pp, num_moe / layout.pp), rows * row_bytes
        )
    found += key_transfers(facts, layout, size, kv_row_bytes / layout.pp, item_bytes)
    if layout.pp > 1:
        boundary = size.rows * facts.hidden * facts.row_streams * item_bytes / layout.width
        stages, width = layout.pp, layout.width  # the slowest of the borders sets the pace
        found.append(
            Transfer(operation="send", size_bytes=boundary, n=stages, count=1, stride=width)
        )
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
    yield behind, behind, min(size.rows, size.batch * facts.window)


def _layers(
    facts: ModelFacts,
    layout: Layout,
    size: StepSize,
    counts: tuple[float, float],
    step_bytes: float,
) -> Iterator[Transfer]:
    """Reductions of attention, then what experts (or a dense MLP) need.

    `counts`: the layers, and those of them with experts.
    """
    num_layers, num_moe = counts
    n, share = layout.width, layout.row_share(size.rows, size.batch)
    heads = Transfer(
        operation="all_reduce",
        size_bytes=step_bytes * share,
        n=layout.tp,
        count=num_layers,
        after="attend",
    )
    yield heads

    def of_mlps(operation: Operation, size_bytes: float, after: After) -> Transfer:
        count = num_layers if layout.shares_mlps else num_moe
        return Transfer(operation=operation, size_bytes=size_bytes, n=n, count=count, after=after)

    if layout.shares_mlps or layout.experts == "gather":
        rows_bytes = step_bytes * _unevenness(layout, size)
        yield of_mlps("all_gather", rows_bytes, "attend")
        yield of_mlps("reduce_scatter", rows_bytes, "mlp")
    elif layout.experts == "exchange":
        leaving = distinct_ranks(n, facts.top_k) * step_bytes * share / layout.tp
        yield of_mlps("all_to_all", leaving, "attend")
        yield of_mlps("all_to_all", leaving, "mlp")
    elif layout.experts in ("columns", "reduce"):
        yield of_mlps("all_reduce", step_bytes, "mlp")
    if not layout.shares_mlps:  # other MLPs and shared experts are cut by channels
        num_cut = num_layers if layout.experts in ("local", "dense") else num_layers - num_moe
        yield replace(heads, count=num_cut, after="mlp")


def _unevenness(layout: Layout, size: StepSize) -> float:
    """How much more than a Nth leaves the ranks where sequences do not share out evenly.

    A ring carries all rows past each rank but those of the next one: of the rank with fewest.
    """
    n = layout.width
    fewest = size.batch // layout.dp / size.batch * layout.dp / n
    return (1 - fewest) * n / (n - 1)
