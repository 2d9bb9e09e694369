"""Ranks share rows, and experts: dispatched to their ranks, or cut between a gather and a scatter.

Legend: T rows of a step, N rows of a rank, C channels.
"""

from __future__ import annotations

import torch

from kernels.calibration.seat import SIZE
from kernels.collectives.schedules import builders
from workers.planning.validation.chain import Action, Segment, serial
from workers.planning.validation.rows import RowStep, State
from workers.planning.validation.step import Plan, Share
from workers.planning.validation.toys import Weights, experts_of, inner_layer, rows_of_expert


class DispatchedStep(RowStep):
    """Experts on ranks, rows sent to them and back."""

    def __init__(self, plan: Plan, share: Share) -> None:
        super().__init__(plan, share)
        self._leaving = [self._rows_for(rank, plan.chunk // SIZE) for rank in range(SIZE)]

    def begin_inner(self, state: State) -> None:
        """Rows for the ranks of their experts, beside one another."""
        super().begin_inner(state)
        state["out"] = torch.cat([self.ops.rows(state["y"], rows) for rows in self._leaving])

    def after_attention(self, state: State, weights: Weights) -> list[Segment]:
        """The expert of all tokens computes while rows travel to the others."""
        ops, num_own = self.ops, self.plan.chunk // SIZE
        leaving = self._leaving
        sizes = [len(rows) for rows in leaving]
        arriving = [sizes[self.rank]] * SIZE  # the other rank holds as many tokens
        received = self._received(num_own)
        schedule = builders.expert_dispatch(SIZE, 0, 0, 0.0, 0.0)

        def dispatch() -> None:
            state["in"] = self.wire.all_to_all(state["out"], sizes)[0]

        def shared() -> None:
            state["shared"] = inner_layer(ops, weights, state["y"])

        def routed() -> None:
            sum_TC = torch.zeros(state["in"].shape, device=self.device)
            experts_of(ops, weights, state["in"], sum_TC, received)
            state["back"] = sum_TC

        def combine() -> None:
            state["back"] = self.wire.all_to_all(state["back"], arriving)[0]

        def add() -> None:
            for rank, part in enumerate(state["back"].split(sizes)):
                ops.scatter(state["shared"], leaving[rank], part)
            state["x"] = ops.add(state["shared"], state["x"])

        actions = {
            "dispatch": dispatch,
            "shared": shared,
            "routed": routed,
            "combine": combine,
            "add": add,
        }
        return [Segment(schedule, actions)]

    def _rows_for(self, rank: int, num_rows: int) -> torch.Tensor:
        """The rows that some expert of a rank takes, each once."""
        own = [rows_of_expert(self.toy, e, num_rows, "cpu") for e in self._experts(rank)]
        return torch.cat(own).unique().to(self.device)

    def _experts(self, rank: int) -> range:
        each = self.toy.num_experts // SIZE
        return range(rank * each, (rank + 1) * each)

    def _received(self, num_rows: int) -> list[torch.Tensor]:
        """For each own expert its rows among those that arrived from both ranks."""
        each = [rows_of_expert(self.toy, e, num_rows, "cpu") for e in self._experts(self.rank)]
        taken = torch.cat(each).unique()
        at = [torch.searchsorted(taken, index) for index in each]
        return [torch.cat([i + r * len(taken) for r in range(SIZE)]).to(self.device) for i in at]


class ReducedStep(RowStep):
    """Every rank has a share of every expert's inner channels."""

    def after_attention(self, state: State, weights: Weights) -> list[Segment]:
        """Gather, compute a share of every expert, scatter."""
        indices = self.indices(self.plan.chunk)

        def gather() -> None:
            state["all"] = self.wire.all_gather(state["y"])

        def compute() -> None:
            sum_TC = torch.zeros(state["all"].shape, device=self.device)
            experts_of(self.ops, weights, state["all"], sum_TC, indices)
            state["all"] = sum_TC

        def scatter() -> None:
            state["mine"] = self.wire.reduce_scatter(state["all"])

        def add() -> None:
            shared_NC = inner_layer(self.ops, weights, state["y"])
            both_NC = self.ops.add(shared_NC, state["mine"])
            state["x"] = self.ops.add(both_NC, state["x"])

        pieces: list[tuple[str, str, Action]] = [
            ("gather rows", "all_gather", gather),
            ("experts", "", compute),
            ("scatter rows", "reduce_scatter", scatter),
            ("add", "", add),
        ]
        return [serial(pieces)]
