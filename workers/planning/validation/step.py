"""A rank's run of a plan: its tensors, its cache of keys and values, attention block by block.

Legend: T rows of a step, C channels, H heads, D head dim, X heads times head dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.calibration.seat import SIZE
from workers.planning.validation.ops import Ops, Wire
from workers.planning.validation.toys import BLOCK, Toy, Weights, rows_of_expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is predicted and run: a toy, how ranks share it, and the tokens of a prefill step."""

    toy: Toy
    layout: str
    chunk: int

    @property
    def name(self) -> str:
        """As the report shows it."""
        return f"{self.toy.name} {self.layout}, steps of {self.chunk}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a rank has: its number, what it computes and talks with, its weights of all layers."""

    rank: int
    ops: Ops
    wire: Wire
    weights: Sequence[Weights]
    device: str


class Step:
    """What every layout has in common."""

    def __init__(self, plan: Plan, share: Share, num_heads: int) -> None:
        self.toy, self.plan = plan.toy, plan
        self.rank, self.ops, self.wire = share.rank, share.ops, share.wire
        self.weights, self.device = share.weights, share.device
        toy = plan.toy
        self.ones_C = torch.ones(toy.channels, device=self.device)
        self.x_TC = self._inputs()
        shape = (toy.num_layers, 2, toy.num_tokens, num_heads, toy.head_dim)
        self.cache = torch.empty(shape, device=self.device)

    @property
    def begins(self) -> range:
        """The first token of each step."""
        return range(0, self.toy.num_tokens, self.plan.chunk)

    def _inputs(self) -> torch.Tensor:
        shape = self.toy.num_tokens, self.toy.channels
        if self.device == "meta":
            return torch.empty(shape, device="meta")
        return torch.randn(shape, generator=torch.Generator().manual_seed(7))

    @property
    def block(self) -> int:
        """Tokens that are dealt out to ranks together."""
        return BLOCK if self.toy.is_causal else self.plan.chunk // SIZE

    def in_order(self, dealt_TX: torch.Tensor) -> torch.Tensor:
        """Rows of rank 0, then of rank 1, as tokens; the caller copies them on."""
        width = dealt_TX.shape[1]
        return dealt_TX.view(SIZE, -1, self.block, width).transpose(0, 1)

    def heads_of(self, x_TX: torch.Tensor) -> torch.Tensor:
        """The last dim as heads and head dims."""
        return x_TX.unflatten(-1, (-1, self.toy.head_dim))

    def queries(self, qkv: torch.Tensor) -> torch.Tensor:
        """The first third of a projection, in heads."""
        flat_TX = qkv.reshape(self._num(qkv), -1)
        return self.heads_of(flat_TX[:, : flat_TX.shape[1] // 3])

    def _num(self, x: torch.Tensor) -> int:
        return x.numel() // x.shape[-1]

    def remember(
        self, layer: int, begin: int, qkv: torch.Tensor, *, has_queries: bool = True
    ) -> None:
        """Keys and values of rows from `begin` on, into the cache."""
        parts = qkv.unflatten(-1, (3 if has_queries else 2, -1))
        num_rows = self._num(qkv)
        for which in range(2):
            x = parts.select(-2, which + has_queries)
            target_THD = self.cache[layer, which, begin : begin + num_rows]
            self.ops.copy(target_THD.view(x.shape), x)

    def attended(self, layer: int, q_THD: torch.Tensor, blocks: list[int]) -> torch.Tensor:
        """Blocks of queries that begin at these tokens, each over the keys up to its end."""
        keys, values = self.cache[layer]
        if not self.toy.is_causal:
            return self.ops.attend(q_THD, keys, values).flatten(1)
        parts = [
            self.ops.attend(
                q_THD[i * BLOCK : (i + 1) * BLOCK], keys[: at + BLOCK], values[: at + BLOCK]
            )
            for i, at in enumerate(blocks)
        ]
        return torch.cat(parts).flatten(1)

    def indices(self, num_rows: int) -> list[torch.Tensor]:
        """For each expert the rows that it takes of these; made before anything is timed."""
        experts = range(self.toy.num_experts)
        return [rows_of_expert(self.toy, e, num_rows, self.device) for e in experts]
