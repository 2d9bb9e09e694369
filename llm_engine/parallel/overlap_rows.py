"""Layers over whole weights for rows that ranks share out, as recorded blocks compute them."""

# N rows of a chunk, M rows of all ranks' chunks of one turn, C channels, H query heads,
# K key/value heads, D head dim.

from __future__ import annotations

from collections.abc import Sequence

import torch

from llm_engine.layers.step import Step
from llm_engine.parallel.exchange import KeyGather
from llm_engine.parallel.overlap_blocks import RankUpdates


class GatheredLayers:
    """See `llm_engine.parallel.overlap_context.ContextLayers`.

    Invariant: the second block of a layer needs no exchange, since every rank has all of it.
    """

    def __init__(self, updates: RankUpdates, steps: Sequence[Step]) -> None:
        """A step for each chunk, whose attention is a `KeyGather`."""
        self._updates, self._steps = updates, steps
        self._queries: dict[int, torch.Tensor] = {}

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return self._updates.num_layers

    def project(self, layer: int, chunk: int, x_NC: torch.Tensor) -> torch.Tensor:
        """See the protocol."""
        heads = self._updates.heads(layer, x_NC, self._steps[chunk])
        self._queries[chunk], kv_N2KD = self._gather(chunk).store(layer, *heads)
        return kv_N2KD

    def attend(
        self, layer: int, chunk: int, x_NC: torch.Tensor, kv_M2KD: torch.Tensor
    ) -> torch.Tensor:
        """See the protocol."""
        step = self._steps[chunk]
        o_NHD = self._gather(chunk).attend(layer, self._queries.pop(chunk), kv_M2KD)
        x_NC = x_NC + self._updates.output(layer, o_NHD, step)
        return x_NC + self._updates.mlp_update(layer, x_NC, step)

    def _gather(self, chunk: int) -> KeyGather:
        attend = self._steps[chunk].attend
        assert isinstance(attend, KeyGather), "rows are shared out with their keys gathered"
        return attend
