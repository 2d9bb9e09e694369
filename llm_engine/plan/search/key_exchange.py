"""How queries meet keys that lie on other ranks: gathered, exchanged by heads, or in a ring.

N ranks, T rows of the step, S tokens up to its end, D values of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_engine.plan.search.transfer import Transfer

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelFacts
    from llm_engine.plan.search.prediction import StepSize


def key_transfers(
    facts: ModelFacts, layout: Layout, size: StepSize, kv_row_bytes: float, item_bytes: int
) -> Iterator[Transfer]:
    """Everything in the layers of one stage. `kv_row_bytes`: of one token in all of them."""
    layers = facts.num_layers / layout.pp
    each = kv_row_bytes / layers / min(layout.tp, facts.kv_heads)
    if layout.cp > 1 and layout.keys == "ring":
        yield from _ring(facts, layout, size, layers, each, item_bytes)
    if size.phase == "decode":
        if layout.kv_shard > 1:
            yield from _merged(facts, layout, size.batch / layout.dp, layers, item_bytes)
        return
    if layout.key_ranks > 1:
        yield _dealt_out(facts, layout, size, kv_row_bytes, layers)
    if layout.cp > 1 and layout.keys == "gather":
        yield _gathered(size.rows * each, layout.cp, layers, layout.tp)
    if layout.cp > 1 and layout.keys == "heads":
        yield from _by_heads(facts, layout, size, layers, item_bytes)
    yield _gathered((size.context - size.rows) * kv_row_bytes / layers, layout.kv_shard, layers)


def _gathered(layer_bytes: float, n: int, layers: float, stride: int = 1) -> Transfer:
    """New rows over the ranks that divide a prompt, earlier ones over those of the cache."""
    return Transfer(
        operation="all_gather",
        size_bytes=layer_bytes,
        n=n,
        count=layers,
        after="project",
        stride=stride,
    )


def _dealt_out(
    facts: ModelFacts, layout: Layout, size: StepSize, kv_row_bytes: float, layers: float
) -> Transfer:
    """New keys from stages to the ranks that decode, in each turn a layer of every stage.

    A head that several ranks need goes to all of them.
    """
    heads = min(layout.key_ranks, facts.kv_heads)
    own_bytes = size.rows * kv_row_bytes / layers * layout.pp / heads
    return Transfer(operation="all_to_all", size_bytes=own_bytes, n=layout.key_ranks, count=layers)


def _by_heads(
    facts: ModelFacts, layout: Layout, size: StepSize, layers: float, item_bytes: int
) -> Iterator[Transfer]:
    """Queries, keys and values go to the ranks of their heads, outputs come back.

    A key/value head that several ranks need goes to each.
    """
    rows = size.rows * layout.row_share(size.rows, size.batch)
    unit = layout.tp * layout.cp
    kv_heads = max(facts.kv_heads, unit) / layout.tp
    heads = facts.num_heads / layout.tp
    there = rows * (heads + 2 * kv_heads) * facts.query_width * item_bytes
    back = rows * heads * facts.value_width * item_bytes
    one = Transfer(
        operation="all_to_all",
        size_bytes=there,
        n=layout.cp,
        count=layers,
        after="project",
        stride=layout.tp,
    )
    yield one
    yield replace(one, size_bytes=back, after="attend")


def _ring(
    facts: ModelFacts,
    layout: Layout,
    size: StepSize,
    layers: float,
    token_bytes: float,
    item_bytes: int,
) -> Iterator[Transfer]:
    """Keys of all tokens pass every rank, or queries and parts of answers do: the fewer bytes.

    Keys travel while those at hand are attended to, queries before and answers after.
    Sources: Liu et al. 2023, arXiv:2310.01889; Yang et al. 2024, arXiv:2411.01783 ("pass-Q").
    """
    sequences = math.ceil(size.batch / layout.dp)
    rows = size.rows * sequences / size.batch
    heads = facts.num_heads / layout.tp
    keys = sequences * size.context * token_bytes
    queries = rows * heads * facts.query_width * item_bytes
    answers = rows * heads * facts.value_width * item_bytes
    passed = Transfer(
        operation="ring",
        size_bytes=keys,
        n=layout.cp,
        count=layers,
        after="attend",
        stride=layout.tp,
        is_under=True,
    )
    if keys <= queries + answers:
        yield passed
        return
    asked = replace(passed, operation="all_gather", size_bytes=queries, is_under=False)
    yield replace(asked, after="project")
    # Each rank has a part of every row's answer and keeps that of its own rows.
    yield replace(asked, operation="all_to_all", size_bytes=answers)


def _merged(
    facts: ModelFacts, layout: Layout, rows: float, layers: float, item_bytes: int
) -> Iterator[Transfer]:
    """Queries go to every shard of the cache, and partial results are summed."""
    n = layout.kv_shard
    heads = facts.num_heads / layout.tp * n
    queries = rows * heads * facts.query_width * item_bytes
    results = rows * heads * facts.value_width * item_bytes
    yield Transfer(operation="all_gather", size_bytes=queries, n=n, count=layers)
    yield Transfer(operation="reduce_scatter", size_bytes=results, n=n, count=layers)
