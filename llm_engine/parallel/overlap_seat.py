"""A rank's overlapped steps: what its layout exchanges, who measures it, and what was asked."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.ledger import Ledger
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.parallel.loading import Share
from llm_engine.parallel.overlap_exchange import (
    DividedRows,
    Gathers,
    Heads,
    LayerExchange,
    Sums,
)
from llm_engine.parallel.overlap_policy import OverlapPolicy, unserved
from llm_engine.parallel.overlap_probe import Prober
from llm_engine.parallel.overlap_steps import OverlappedSteps, shares_rows
from llm_engine.parallel.rank_ops import RankOps
from llm_engine.parallel.shares import HeadShare


def overlapped_steps(
    share: Share,
    rank_ops: RankOps,
    ops: BoundOps,
    cp_heads: Sequence[HeadShare],
    page_size: int,
    policy: OverlapPolicy,
    ledger: Ledger,
) -> OverlappedSteps | None:
    """For one layout of a rank; None where no schedule serves it, or nothing is to be looked at."""
    on_devices = share.device.place.type != "cpu"
    missing = unserved(rank_ops.layout, on_devices=on_devices)
    if missing is not None or policy.is_blocking:
        return None
    exchange = layer_exchange(share, rank_ops, cp_heads)
    prober = Prober(share.cached, ops, share.model.rotary, page_size, exchange, policy.phase)
    return OverlappedSteps(share.model, rank_ops, prober, ledger, policy)


def layer_exchange(share: Share, rank_ops: RankOps, cp_heads: Sequence[HeadShare]) -> LayerExchange:
    """What the layout exchanges within a layer."""
    mesh, layout = rank_ops.mesh, rank_ops.layout
    if layout.dp > 1:
        return DividedRows(mesh.rows)
    if layout.cp == 1:
        return Sums(mesh.world)
    if shares_rows(layout):
        return Gathers(mesh.cp, share.cached)
    return Heads(mesh.cp, cp_heads, share.whole)
