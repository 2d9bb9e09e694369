"""Experts that ranks share out: each computes its own for all rows, or rows travel to them."""

# N rows on this rank, M of all cp ranks, R rows that other ranks sent, C channels, k choices.

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from kernels.collectives.reduction import piece_sizes
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.experts import AdaptExpert, Expert, MoeBlock, apply_experts
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.adapter_rows import RowAdapters
from llm_engine.parallel.divided_step import DividedStep
from llm_engine.parallel.layout import Layout
from llm_engine.parallel.mesh import Mesh
from llm_engine.parallel.row_pieces import RowPieces
from llm_engine.parallel.shares import WeightShare, expert_runs


class ExpertExchange:
    """What a block of experts adds to x, in the form that the layout says.

    Without ep, the channels of every expert are split as those of an MLP. So are rows by their
    sequences: gathered for whatever part of the experts a rank has. With ep and the same
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
        runs = expert_runs(num_experts, layout)
        owners = [rank for rank, run in enumerate(runs) for _ in run]
        self._owner_of_E = torch.tensor(owners, dtype=torch.int64)

    def __call__(
        self, layer: int, block: MoeBlock, x_NC: torch.Tensor, step: Step, pieces: RowPieces
    ) -> torch.Tensor:
        """Shapes: x and result (N, C). `pieces` are those in which rows of all ranks travel."""
        layout, mesh = self._layout, self._mesh
        if layout.dispatch == "a2a":
            return self._dispatched(layer, block, step, *self._ops.route(block, x_NC))
        term = partial(self.term, layer, block, step)
        if isinstance(step, DividedStep):
            if layout.ep == 1:
                y_NC = pieces.over_all_rows(mesh.dp, x_NC, step.dp_counts, term)
            else:
                y_NC = pieces.over_all_rows(mesh.rows, x_NC, step.row_counts, term)
            return mesh.peers.all_reduce(y_NC)
        if layout.ep == 1:
            return mesh.tp.all_reduce(term(x_NC))
        if layout.cp == 1:
            return mesh.peers.all_reduce(term(x_NC))
        x_MC = mesh.cp.all_gather(x_NC)
        sizes = self._sizes(len(x_NC), len(x_MC))
        return mesh.peers.all_reduce(mesh.cp.reduce_scatter(term(x_MC), sizes))

    def term(self, layer: int, block: MoeBlock, step: Step, x_NC: torch.Tensor) -> torch.Tensor:
        """What the rank's experts add, not exchanged. Shapes: x and result (N, C)."""
        adapt = None if step.adapters is None else partial(step.adapters.update_expert, layer)
        return self._applied(block.experts, *self._ops.route(block, x_NC), adapt)

    def _sizes(self, num_rows: int, num_all: int) -> list[int]:
        """The rows of each cp rank: even parts, but for rows that follow their positions."""
        if self._layout.exchange != "ring":
            return piece_sizes(num_all, self._layout.cp)
        return self._mesh.cp.all_gather(torch.tensor([num_rows])).tolist()

    def _applied(
        self,
        experts: Sequence[Expert],
        h_NC: torch.Tensor,
        ids_Nk: torch.Tensor,
        weights_Nk: torch.Tensor,
        adapt: AdaptExpert | None = None,
    ) -> torch.Tensor:
        swiglu, first = self._ops.swiglu, self._first
        over_rows = self._ops.over_rows
        return apply_experts(
            experts,
            h_NC,
            ids_Nk,
            weights_Nk,
            swiglu,
            first=first,
            over_rows=over_rows,
            adapt=adapt,
        )

    def _dispatched(
        self,
        layer: int,
        block: MoeBlock,
        step: Step,
        h_NC: torch.Tensor,
        ids_Nk: torch.Tensor,
        weights_Nk: torch.Tensor,
    ) -> torch.Tensor:
        """A row goes once to each rank that has experts of its choice, its adapter with it."""
        ranks, num_choices = self._mesh.rows, ids_Nk.shape[1]
        adapters = step.adapters
        rows = self._rows_by_rank(ids_Nk, ranks.group.size)
        sizes = [len(each) for each in rows]
        order = torch.cat(rows).to(h_NC.device)
        # Ids are small whole numbers: exact in float32, so that they travel with the weights.
        routes = [ids_Nk.float(), weights_Nk.float()]
        if isinstance(adapters, RowAdapters):  # on all ranks or on none
            routes.append(adapters.numbers_N.unsqueeze(1).float())
        h_RC, counts = ranks.all_to_all(h_NC.index_select(0, order), sizes)
        sent = torch.cat(routes, dim=1).index_select(0, order)
        routes_R, _ = ranks.all_to_all(sent, sizes)
        ids_Rk, weights_Rk, numbers_R = routes_R.tensor_split((num_choices, 2 * num_choices), dim=1)
        adapt = None
        if isinstance(adapters, RowAdapters):
            arrived = adapters.of_numbers(numbers_R.flatten().long().to("cpu").tolist())
            adapt = None if arrived is None else partial(arrived.update_expert, layer)
        y_RC = self._applied(block.experts, h_RC, ids_Rk.long(), weights_Rk, adapt)
        back, _ = ranks.all_to_all(y_RC, counts)
        y_NC = torch.zeros(h_NC.shape, dtype=torch.float32, device=h_NC.device)
        y_NC.index_add_(0, order, back.float())
        return y_NC.to(h_NC.dtype)

    def _rows_by_rank(self, ids_Nk: torch.Tensor, num_ranks: int) -> list[torch.Tensor]:
        """The rows that have experts on each rank, in the host's memory.

        The host waits for the device here: it is the host that tells the other ranks how many rows
        they get.
        """
        owners_Nk = self._owner_of_E[ids_Nk.to("cpu").long()]
        return [(owners_Nk == rank).any(1).nonzero().flatten() for rank in range(num_ranks)]
