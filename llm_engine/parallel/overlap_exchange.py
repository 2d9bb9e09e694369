"""What a layout exchanges within a layer of a prompt: to be timed, and its error measured."""

# N tokens of a step, R of them on this rank, C channels, K key/value heads, D head dim, P heads
# of rows.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.protocol import Communicator
from kernels.collectives.reduction import piece_sizes
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.exchange import HeadExchange
from llm_engine.parallel.overlap_blocks import RankUpdates
from llm_engine.parallel.overlap_context import share_rows
from llm_engine.parallel.shares import HeadShare, ranges


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a rank sends, and the exchange that gives what arrives for it."""

    x: torch.Tensor
    travel: Callable[[torch.Tensor, Contract], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of a step from its start: `own` pass through this rank's layers, in one chunk.

    Its heads attend for the rows `attended`, which are others where ranks hold rows but attend
    by heads.
    """

    own: range
    attended: range


Update = Callable[[int, torch.Tensor, Step], torch.Tensor]


class LayerExchange(Protocol):
    """A layer's exchanges of a step, on one rank; all ranks call it alike."""

    def hiding(self, updates: RankUpdates) -> tuple[Update, ...]:
        """What a layer computes while its exchanges of other chunks travel."""
        ...

    def rows(self, num_tokens: int, num_chunks: int) -> list[ChunkRows]:
        """This rank's rows of each chunk."""
        ...

    def blank(self, num_tokens: int, like_C: torch.Tensor) -> list[Exchanged]:
        """Of their sizes, all zero, for a step of so many tokens. Shapes: like (C,)."""
        ...

    def filled(
        self, updates: RankUpdates, layer: int, x_RC: torch.Tensor, step: Step, num_tokens: int
    ) -> list[Exchanged]:
        """Of a layer's values for a whole step. Shapes: x (R, C), this rank's rows."""
        ...


class Sums:
    """The two sums of a layer whose heads, channels or experts are split: all have all rows."""

    def __init__(self, ranks: Communicator) -> None:
        """`ranks` are those that sum."""
        self._ranks = ranks

    def hiding(self, updates: RankUpdates) -> tuple[Update, ...]:
        """See the protocol."""
        return updates.attention_update, updates.mlp_update

    def rows(self, num_tokens: int, num_chunks: int) -> list[ChunkRows]:
        """See the protocol."""
        return [ChunkRows(run, run) for run in ranges(num_tokens, num_chunks)]

    def blank(self, num_tokens: int, like_C: torch.Tensor) -> list[Exchanged]:
        """See the protocol."""
        x_NC = like_C.new_zeros(num_tokens, len(like_C))
        return [Exchanged(x_NC, self._sum), Exchanged(x_NC, self._sum)]

    def filled(
        self, updates: RankUpdates, layer: int, x_RC: torch.Tensor, step: Step, num_tokens: int
    ) -> list[Exchanged]:
        """See the protocol."""
        terms = [
            updates.attention_update(layer, x_RC, step),
            updates.mlp_update(layer, x_RC, step),
        ]
        return [Exchanged(term_NC, self._sum) for term_NC in terms]

    def _sum(self, x_NC: torch.Tensor, contract: Contract) -> torch.Tensor:
        return self._ranks.all_reduce(x_NC.clone(), contract=contract)


class Gathers:
    """A layer's keys and values of rows that ranks share out, gathered on all of them."""

    def __init__(self, cp: Communicator, config: ModelConfig) -> None:
        """`config` are the sizes of what a rank attends with."""
        self._cp, self._config = cp, config

    def hiding(self, updates: RankUpdates) -> tuple[Update, ...]:
        """See the protocol."""
        return updates.attention_update, updates.mlp_update

    def rows(self, num_tokens: int, num_chunks: int) -> list[ChunkRows]:
        """See the protocol."""
        group = self._cp.group
        pieces = [turn[group.rank] for turn in share_rows(num_tokens, group.size, num_chunks)]
        runs = [range(piece.start, piece.start + piece.num_tokens) for piece in pieces]
        return [ChunkRows(run, run) for run in runs]

    def blank(self, num_tokens: int, like_C: torch.Tensor) -> list[Exchanged]:
        """See the protocol."""
        own = piece_sizes(num_tokens, self._cp.group.size)[self._cp.group.rank]
        config = self._config
        kv_R = like_C.new_zeros(own, 2 * config.num_kv_heads * config.head_dim)
        return [Exchanged(kv_R, self._gather)]

    def filled(
        self, updates: RankUpdates, layer: int, x_RC: torch.Tensor, step: Step, num_tokens: int
    ) -> list[Exchanged]:
        """See the protocol."""
        _, k_RKD, v_RKD = updates.heads(layer, x_RC, step)
        return [Exchanged(torch.stack((k_RKD, v_RKD), dim=1), self._gather)]

    def _gather(self, x_R: torch.Tensor, contract: Contract) -> torch.Tensor:
        return self._cp.all_gather(x_R.contiguous(), contract=contract)


class Heads:
    """A layer's heads to the ranks that attend with them, and their outputs back."""

    def __init__(self, cp: Communicator, shares: Sequence[HeadShare], config: ModelConfig) -> None:
        """`shares` are the heads that cp ranks attend with, `config` the whole model's sizes."""
        self._cp, self._shares, self._config = cp, shares, config

    def hiding(self, updates: RankUpdates) -> tuple[Update, ...]:
        """See the protocol."""
        return updates.attention_update, updates.mlp_update

    def rows(self, num_tokens: int, num_chunks: int) -> list[ChunkRows]:
        """See the protocol."""
        group = self._cp.group
        found: list[ChunkRows] = []
        for run in ranges(num_tokens, num_chunks):
            own = ranges(len(run), group.size)[group.rank]
            found.append(ChunkRows(range(run.start + own.start, run.start + own.stop), run))
        return found

    def blank(self, num_tokens: int, like_C: torch.Tensor) -> list[Exchanged]:
        """See the protocol."""
        config, exchange = self._config, self._exchange(num_tokens)
        own = piece_sizes(num_tokens, self._cp.group.size)[self._cp.group.rank]
        share = self._shares[self._cp.group.rank]
        num_heads = own * sum(len(s.queries) + 2 * len(s.kv) for s in self._shares)
        heads_PD = like_C.new_zeros(num_heads, config.head_dim)
        o_PD = like_C.new_zeros(num_tokens * len(share.queries), config.head_dim)
        return [Exchanged(heads_PD, exchange.go), Exchanged(o_PD, exchange.come_back)]

    def filled(
        self, updates: RankUpdates, layer: int, x_RC: torch.Tensor, step: Step, num_tokens: int
    ) -> list[Exchanged]:
        """See the protocol. Outputs are left out: averages of the values, which travel here."""
        heads = updates.heads(layer, x_RC, step)
        exchange = self._exchange(num_tokens)
        return [Exchanged(exchange.packed(*heads), exchange.go)]

    def _exchange(self, num_tokens: int) -> HeadExchange:
        counts = piece_sizes(num_tokens, self._cp.group.size)
        return HeadExchange(_nothing_to_attend, self._cp, self._shares, counts)


class DividedRows:
    """Rows of everybody's sequences, gathered for a layer's MLP, and their sums scattered again."""

    def __init__(self, ranks: Communicator) -> None:
        """`ranks` have other rows each, and compute those of all."""
        self._ranks = ranks

    def hiding(self, updates: RankUpdates) -> tuple[Update, ...]:
        """See the protocol. Each rank attends for its own sequences before rows meet."""
        return (updates.mlp_update,)

    def rows(self, num_tokens: int, num_chunks: int) -> list[ChunkRows]:
        """See the protocol."""
        return [ChunkRows(run, run) for run in ranges(num_tokens, num_chunks)]

    def blank(self, num_tokens: int, like_C: torch.Tensor) -> list[Exchanged]:
        """See the protocol."""
        group = self._ranks.group
        counts = piece_sizes(num_tokens, group.size)
        scatter = functools.partial(self._scatter, counts)
        return [
            Exchanged(like_C.new_zeros(counts[group.rank], len(like_C)), self._gather),
            Exchanged(like_C.new_zeros(num_tokens, len(like_C)), scatter),
        ]

    def filled(
        self, updates: RankUpdates, layer: int, x_RC: torch.Tensor, step: Step, num_tokens: int
    ) -> list[Exchanged]:
        """Nothing: these rows travel exact, see `overlap_policy.wire_unserved`."""
        return []

    def _gather(self, x_RC: torch.Tensor, contract: Contract) -> torch.Tensor:
        return self._ranks.all_gather(x_RC, contract=contract)

    def _scatter(
        self, counts: Sequence[int], x_NC: torch.Tensor, contract: Contract
    ) -> torch.Tensor:
        return self._ranks.reduce_scatter(x_NC, counts, contract=contract)


def _nothing_to_attend(*_: object) -> torch.Tensor:
    raise AssertionError("an exchange that is timed attends to nothing")


def error_of(exchanged: Sequence[Exchanged], contract: Contract) -> float:
    """The largest relative error of what arrives, against the exact exchange; ranks differ."""
    largest = 0.0
    for sent in exchanged:
        exact = sent.travel(sent.x, "exact").float()
        other = sent.travel(sent.x, contract).float()
        largest = max(largest, float((other - exact).norm() / exact.norm().clamp_min(1e-30)))
    return largest
