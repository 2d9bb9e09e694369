"""Layers for rows shared out over ranks: whole weights, all keys on every rank."""

# N rows of a chunk, M rows of all ranks' chunks of one turn, C channels, H query heads,
# K key heads, D head dim.

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.overlap.fused import FusedWeights
from llm_engine.layers.attention import PagedAttention
from llm_engine.layers.step import Step
from llm_engine.parallel.overlap_context import Piece, share_rows


@dataclass(frozen=True, slots=True)
class _Turn:
    """A chunk of this rank, and where the rows of all ranks' chunks lie in the cache."""

    step: Step
    attention: PagedAttention
    rows_M: torch.Tensor


class FusedContext:
    """See `llm_engine.parallel.overlap_context.ContextLayers`; one prompt from its start."""

    def __init__(self, weights: FusedWeights, rank: int, size: int, num_tokens: int) -> None:
        """Share the prompt's rows out; `pieces` are this rank's."""
        self._weights = weights
        turns = share_rows(num_tokens, size)
        self.pieces: tuple[Piece, ...] = tuple(turn[rank] for turn in turns)
        self._turns = [self._turn(turn, rank) for turn in turns]
        self._queries: dict[int, torch.Tensor] = {}

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._weights.attention)

    def project(self, layer: int, chunk: int, x_NC: torch.Tensor) -> torch.Tensor:
        """See the protocol."""
        weights, turn = self._weights, self._turns[chunk]
        attention = turn.attention
        heads = weights.blocks.heads(layer, weights.attention[layer], x_NC, turn.step)
        self._queries[chunk] = attention.store(layer, *heads)
        return self._cache(layer).index_select(0, attention.slots)

    def attend(
        self, layer: int, chunk: int, x_NC: torch.Tensor, kv_M2KD: torch.Tensor
    ) -> torch.Tensor:
        """See the protocol."""
        weights, turn = self._weights, self._turns[chunk]
        self._cache(layer).index_copy_(0, turn.rows_M, kv_M2KD)
        o_NHD = turn.attention.attend(layer, self._queries.pop(chunk))
        x_NC = x_NC + weights.blocks.output(layer, weights.attention[layer], o_NHD, turn.step)
        return x_NC + weights.mlp_update(layer, x_NC, turn.step)

    def _cache(self, layer: int) -> torch.Tensor:
        """Rows (positions, 2, K, D): pages lie in order."""
        return self._weights.cache.layers[layer].flatten(0, 1)

    def _turn(self, pieces: tuple[Piece, ...], rank: int) -> _Turn:
        step = self._weights.step(pieces[rank].start, pieces[rank].num_tokens)
        assert isinstance(step.attend, PagedAttention)
        rows = [torch.arange(p.start, p.start + p.num_tokens) for p in pieces]
        return _Turn(step, step.attend, torch.cat(rows))
