"""Ranks share heads and inner channels, and sum; every rank holds all rows.

Legend: T rows of a chunk, C channels, X heads times head dims.
"""

from __future__ import annotations

import torch

from kernels.calibration.seat import SIZE
from kernels.collectives.schedules import builders
from workers.planning.validation.chain import Action, Segment
from workers.planning.validation.step import Plan, Share, Step
from workers.planning.validation.toys import BLOCK, experts_of, inner_layer


class TensorStep(Step):
    """Blocking, or in two chunks of which one computes while the other is on the wire."""

    def __init__(self, plan: Plan, share: Share) -> None:
        super().__init__(plan, share, plan.toy.heads // SIZE)
        self._states: list[torch.Tensor] = []
        self._num_chunks = 2 if plan.layout == "tp split" else 1
        self._indices = self.indices(plan.chunk // self._num_chunks)

    def segments(self) -> list[Segment]:
        """Everything, step by step."""
        return [self._tensor(begin, self._num_chunks) for begin in self.begins]

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, values) of this rank's output."""
        return torch.arange(self.toy.num_tokens), torch.cat(self._states)

    def _tensor(self, begin: int, num_chunks: int) -> Segment:
        size = self.plan.chunk // num_chunks
        chunks = [self.x_TC[begin + i * size : begin + (i + 1) * size] for i in range(num_chunks)]
        states = [chunk.clone() if self.device != "meta" else chunk for chunk in chunks]
        work = builders.LayerWork(attention_s=0.0, mlp_s=0.0, wire_bytes=0)
        layers = [work] * self.toy.num_layers
        schedule = (
            builders.blocking_layers(SIZE, layers)
            if num_chunks == 1
            else builders.token_split(SIZE, layers)
        )
        actions: dict[str, Action] = {}
        for node in schedule.nodes:
            part, layer, chunk = node.name.removeprefix("reduce_").split(".")
            where = states, int(chunk), int(layer)
            if node.kind == "collective":
                actions[node.name] = lambda where=where: self._reduce(*where)
            elif part == "attention":
                first = begin + int(chunk) * size
                actions[node.name] = lambda where=where, f=first: self._tensor_attention(*where, f)
            else:
                actions[node.name] = lambda where=where: self._tensor_inner(*where)
        self._states += states
        return Segment(schedule, actions)

    def _reduce(self, states: list[torch.Tensor], chunk: int, _layer: int) -> None:
        self.wire.all_reduce(states[chunk])

    def _tensor_attention(
        self, states: list[torch.Tensor], chunk: int, layer: int, begin: int
    ) -> None:
        x_TC, weights = states[chunk], self.weights[layer]
        qkv_TX = self.ops.gemm(self.ops.norm(x_TC, self.ones_C), weights["qkv"].flatten(0, 1))
        self.remember(layer, begin, qkv_TX)
        blocks = range(begin, begin + len(x_TC), BLOCK)
        o_TX = self.attended(layer, self.queries(qkv_TX), list(blocks))
        self._write(states, chunk, self.ops.gemm(o_TX, weights["out"]))

    def _tensor_inner(self, states: list[torch.Tensor], chunk: int, layer: int) -> None:
        x_TC, weights = states[chunk], self.weights[layer]
        y_TC = self.ops.norm(x_TC, self.ones_C)
        sum_TC = inner_layer(self.ops, weights, y_TC)
        if self.toy.num_experts:
            experts_of(self.ops, weights, y_TC, sum_TC, self._indices)
        self._write(states, chunk, sum_TC)

    def _write(self, states: list[torch.Tensor], chunk: int, partial_TC: torch.Tensor) -> None:
        """The rank's part of a sum; what came in is added once, by rank 0."""
        if self.rank == 0:
            partial_TC = self.ops.add(partial_TC, states[chunk])
        self.ops.copy(states[chunk], partial_TC)
