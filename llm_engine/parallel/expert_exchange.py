"""Experts that ranks share out: each computes its own for all rows, or rows travel to them."""

# N rows on this rank, M of all cp ranks, R rows that other ranks sent, C channels, k choices.

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.reduction import piece_sizes
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.experts import Expert, MoeBlock, apply_experts
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.layout import Layout
from llm_engine.parallel.mesh import Mesh
from llm_engine.parallel.shares import WeightShare, ranges


class ExpertExchange:
    """What a block of experts adds to x, in the form that the layout says.

    Without ep, the channels of every expert are split as those of an MLP. With ep and the same
    rows on all ranks, each rank's experts give a term of a sum. With ep and split rows they are
    gathered and the terms scattered again (agrs), or each row is sent to the ranks of its experts
    and what those add comes back (a2a).
    Numerics: terms are added in rank order in float32, which is by rising expert, and rounded.
    """

    def __init__(
        self, config: ModelConfig, layout: Layout, mesh: Mesh, share: WeightShare, ops: BoundOps
    ) -> None:
        """`share` says which experts are the rank's."""
        self._layout, self._mesh, self._ops = layout, mesh, ops
        self._first = share.experts.start
        num_experts = 0 if config.moe is None else config.moe.num_experts
        runs = ranges(num_experts, layout.ep)
        owners = [rank for rank, run in enumerate(runs) for _ in run]
        self._owner_of_E = torch.tensor(owners, dtype=torch.int64)

    def __call__(self, block: MoeBlock, x_NC: torch.Tensor) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        layout, mesh = self._layout, self._mesh
        if layout.dispatch == "a2a":
            return self._dispatched(block, *self._ops.route(block, x_NC))
        if layout.ep == 1:
            return mesh.tp.all_reduce(self.term(block, x_NC))
        if layout.cp == 1:
            return mesh.peers.all_reduce(self.term(block, x_NC))
        x_MC = mesh.cp.all_gather(x_NC)
        sizes = piece_sizes(len(x_MC), layout.cp)
        return mesh.peers.all_reduce(mesh.cp.reduce_scatter(self.term(block, x_MC), sizes))

    def term(self, block: MoeBlock, x_NC: torch.Tensor) -> torch.Tensor:
        """What the rank's experts add, not exchanged. Shapes: x and result (N, C)."""
        return self._applied(block.experts, *self._ops.route(block, x_NC))

    def _applied(
        self,
        experts: Sequence[Expert],
        h_NC: torch.Tensor,
        ids_Nk: torch.Tensor,
        weights_Nk: torch.Tensor,
    ) -> torch.Tensor:
        return apply_experts(experts, h_NC, ids_Nk, weights_Nk, self._ops.swiglu, first=self._first)

    def _dispatched(
        self, block: MoeBlock, h_NC: torch.Tensor, ids_Nk: torch.Tensor, weights_Nk: torch.Tensor
    ) -> torch.Tensor:
        """A row goes once to each rank that has experts of its choice."""
        cp, num_choices = self._mesh.cp, ids_Nk.shape[1]
        owners_Nk = self._owner_of_E[ids_Nk.long()]
        rows = [(owners_Nk == rank).any(1).nonzero().flatten() for rank in range(cp.group.size)]
        order, sizes = torch.cat(rows), [len(each) for each in rows]
        # Ids are small whole numbers: exact in float32, so that they travel with the weights.
        routes = torch.cat((ids_Nk.float(), weights_Nk.float()), dim=1)
        h_RC, counts = cp.all_to_all(h_NC[order], sizes)
        routes_R, _ = cp.all_to_all(routes[order], sizes)
        ids_Rk, weights_Rk = routes_R.split(num_choices, dim=1)
        y_RC = self._applied(block.experts, h_RC, ids_Rk.long(), weights_Rk)
        back, _ = cp.all_to_all(y_RC, counts)
        y_NC = torch.zeros(h_NC.shape, dtype=torch.float32)
        y_NC.index_add_(0, order, back.float())
        return y_NC.to(h_NC.dtype)
