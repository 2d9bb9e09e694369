"""Keys and values on their way from the ranks of a stage to those that decode, and back."""

# N tokens, h heads that go from one rank to another, W values or bytes of a token's head.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.collectives.protocol import Communicator
from llm_engine.device import upload
from llm_engine.parallel.token_rows import Cache, token_rows


@dataclass(frozen=True, slots=True)
class Holding:
    """The heads and layers of the model whose keys and values one rank's cache has."""

    heads: range
    layers: range


class KeyMoves:
    """Copies of tokens' keys and values from one division of layers and heads to another.

    A layer's head is sent by the lowest rank that has it. One exchange among all ranks for each
    layer of the longest stage: all ranks send and receive at the same time, and the memory for it
    is that of one layer. Exact: values are moved.
    Cost: a rank sends at most N layers K 2 D values of its own, of which 1 / ranks stay.
    """

    def __init__(
        self,
        world: Communicator,
        sources: Sequence[Holding],
        source: Cache,
        targets: Sequence[Holding],
        target: Cache,
    ) -> None:
        """Both holdings are those of all ranks; the caches are this rank's own."""
        self._world = world
        self._sources, self._targets = sources, targets
        self._source, self._target = token_rows(source), token_rows(target)
        layers = sorted({layer for held in sources for layer in held.layers})
        stages = dict.fromkeys(held.layers for held in targets)
        divided = stages if len(stages) > 1 else dict.fromkeys(held.layers for held in sources)
        # In each turn one layer of every stage, so that no rank waits for its turn.
        longest = max(len(stage) for stage in divided)
        self._turns = [
            [stage[turn] for stage in divided if turn < len(stage)] for turn in range(longest)
        ]
        assert sorted(layer for turn in self._turns for layer in turn) == layers

    def __call__(self, source_rows: Sequence[int], target_rows: Sequence[int]) -> None:
        """Copy tokens by their rows of a layer. All ranks give the same rows."""
        if not source_rows:
            return
        place = self._source.nothing.device
        source_N = upload(source_rows, torch.int64, place)
        target_N = upload(target_rows, torch.int64, place)
        for layers in self._turns:
            self._move(layers, source_N, target_N)

    def _move(self, layers: Sequence[int], source_N: torch.Tensor, target_N: torch.Tensor) -> None:
        rank, num_ranks = self._world.group.rank, self._world.group.size
        own = self._sources[rank]
        parts: list[torch.Tensor] = []
        sizes: list[int] = []
        for to in range(num_ranks):
            found = [
                self._taken(layer, own, heads, source_N)
                for layer in layers
                if (heads := self._sent(layer, rank, to))
            ]
            parts += found
            sizes.append(sum(map(len, found)))
        sent = torch.cat(parts) if parts else self._source.nothing
        arrived, _ = self._world.all_to_all(sent, sizes)
        start = 0
        for sender in range(num_ranks):
            for layer in layers:
                heads = self._sent(layer, sender, rank)
                length = len(heads) * len(target_N)
                if heads:
                    self._put(layer, heads, target_N, arrived[start : start + length])
                start += length

    def _sent(self, layer: int, sender: int, receiver: int) -> range:
        """The heads of a layer that go from one rank to another."""
        wanted, has = self._targets[receiver], self._sources[sender]
        if layer not in wanted.layers or layer not in has.layers:
            return range(0)
        known = [s.heads for s in self._sources[:sender] if layer in s.layers]
        heads = [
            head
            for head in wanted.heads
            if head in has.heads and not any(head in before for before in known)
        ]
        return range(heads[0], heads[-1] + 1) if heads else range(0)

    def _taken(self, layer: int, held: Holding, heads: range, rows_N: torch.Tensor) -> torch.Tensor:
        """Shapes: result (h N, W)."""
        run = slice(heads.start - held.heads.start, heads.stop - held.heads.start)
        return self._source.take(layer - held.layers.start, run, rows_N)

    def _put(self, layer: int, heads: range, rows_N: torch.Tensor, kv: torch.Tensor) -> None:
        held = self._targets[self._world.group.rank]
        run = slice(heads.start - held.heads.start, heads.stop - held.heads.start)
        self._target.put(layer - held.layers.start, run, rows_N, kv)
