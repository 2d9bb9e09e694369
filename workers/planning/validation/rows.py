"""Ranks share rows, dealt out in turn; keys and values are gathered, or rows turned to heads.

Legend: T rows of a step, N rows of a rank, C channels, X heads times head dims.
"""

from __future__ import annotations

import torch

from kernels.calibration.seat import SIZE
from workers.planning.validation.chain import Action, Segment, serial
from workers.planning.validation.step import Plan, Share, Step
from workers.planning.validation.toys import BLOCK, Weights, inner_layer

State = dict[str, torch.Tensor]


class RowStep(Step):
    """Every rank holds the weights and computes its own rows."""

    def __init__(self, plan: Plan, share: Share) -> None:
        has_own_heads = plan.layout == "cp heads"
        super().__init__(plan, share, plan.toy.heads // (SIZE if has_own_heads else 1))
        self._out: dict[int, torch.Tensor] = {}

    def segments(self) -> list[Segment]:
        """Everything, step by step."""
        return [segment for begin in self.begins for segment in self._rows(begin)]

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, values) of this rank's output."""
        rows = torch.cat([self.own_rows(begin) for begin in self.begins])
        return rows, torch.cat([self._out[begin] for begin in self.begins])

    def own_rows(self, begin: int) -> torch.Tensor:
        """This rank's tokens of the step that begins here."""
        width = self.block
        starts = range(begin + self.rank * width, begin + self.plan.chunk, SIZE * width)
        return torch.cat([torch.arange(s, s + width) for s in starts])

    def _rows(self, begin: int) -> list[Segment]:
        state: State = {"x": self.x_TC[self.own_rows(begin)]}
        found: list[Segment] = []
        for layer in range(self.toy.num_layers):
            attention = self._heads if self.plan.layout == "cp heads" else self._gathered
            found += attention(state, layer, begin)
        found.append(serial([("keep", "", lambda: self._keep(state, begin))]))
        return found

    def _keep(self, state: State, begin: int) -> None:
        self._out[begin] = state["x"]

    def _project(self, state: State, layer: int) -> torch.Tensor:
        x_NC = state["x"]
        return self.ops.gemm(
            self.ops.norm(x_NC, self.ones_C), self.weights[layer]["qkv"].flatten(0, 1)
        )

    def _gathered(self, state: State, layer: int, begin: int) -> list[Segment]:
        ops, weights = self.ops, self.weights[layer]

        def project() -> None:
            qkv_NX = self._project(state, layer)
            width = qkv_NX.shape[1] // 3
            state["q"], state["kv"] = qkv_NX[:, :width], qkv_NX[:, width:]

        def gather() -> None:
            state["kv"] = self.wire.all_gather(state["kv"])

        def attend() -> None:
            kv_TX = self.in_order(state["kv"])
            self.remember(layer, begin, kv_TX, has_queries=False)
            blocks = self.own_rows(begin)[:: self.block].tolist()
            o_NX = self.attended(layer, self.heads_of(state["q"]), blocks)
            state["x"] = ops.add(ops.gemm(o_NX, weights["out"]), state["x"])
            self.begin_inner(state)

        pieces: list[tuple[str, str, Action]] = [
            ("project", "", project),
            ("gather", "all_gather", gather),
            ("attend", "", attend),
        ]
        return [serial(pieces), *self.after_attention(state, weights)]

    def begin_inner(self, state: State) -> None:
        """What precedes the inner layer, still in the node of attention."""
        state["y"] = self.ops.norm(state["x"], self.ones_C)

    def after_attention(self, state: State, weights: Weights) -> list[Segment]:
        """The inner layer."""
        return [serial([("inner", "", lambda: self._inner(state, weights))])]

    def _inner(self, state: State, weights: Weights) -> None:
        state["x"] = self.ops.add(inner_layer(self.ops, weights, state["y"]), state["x"])

    def _heads(self, state: State, layer: int, begin: int) -> list[Segment]:
        """Rows to heads and back: every rank attends all rows for its own heads."""
        ops, weights = self.ops, self.weights[layer]
        num_own = self.plan.chunk // SIZE

        def project() -> None:
            qkv_NX = self._project(state, layer)
            parts = qkv_NX.view(num_own, 3, SIZE, -1).permute(2, 0, 1, 3)
            sent = torch.empty(parts.shape, device=self.device)
            ops.copy(sent, parts)
            state["sent"] = sent.view(SIZE * num_own, -1)

        def attend() -> None:
            qkv_TX = self.in_order(state["sent"])
            self.remember(layer, begin, qkv_TX)
            blocks = list(range(begin, begin + self.plan.chunk, BLOCK))
            o_TX = self.attended(layer, self.queries(qkv_TX), blocks)
            turned = o_TX.view(-1, SIZE, self.block, o_TX.shape[1]).transpose(0, 1)
            sent = torch.empty(turned.shape, device=self.device)
            ops.copy(sent, turned)
            state["sent"] = sent.view(self.plan.chunk, -1)

        def finish() -> None:
            halves = state["sent"].view(SIZE, num_own, -1).transpose(0, 1)
            o_NX = torch.empty(halves.shape, device=self.device)
            ops.copy(o_NX, halves)
            projected_NC = ops.gemm(o_NX.view(num_own, -1), weights["out"])
            state["x"] = ops.add(projected_NC, state["x"])
            self.begin_inner(state)
            self._inner(state, weights)

        def exchange() -> None:
            state["sent"] = self.wire.all_to_all(state["sent"], [num_own] * SIZE)[0]

        return [
            serial(
                [
                    ("project", "", project),
                    ("to heads", "all_to_all", exchange),
                    ("attend", "", attend),
                    ("to rows", "all_to_all", exchange),
                    ("finish", "", finish),
                ]
            )
        ]
