"""Prefill steps of one rank whose exchanges travel while other rows compute, where that pays."""

# N tokens of a chunk, C channels.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.collectives.choice import bucket_of
from kernels.ledger import Ledger
from llm_engine.layers.step import Step
from llm_engine.models.base import CausalModel
from llm_engine.parallel.layout import Layout
from llm_engine.parallel.overlap import OverlappedLayers, TokenChunk
from llm_engine.parallel.overlap_blocks import BlockRecorder, RankUpdates
from llm_engine.parallel.overlap_choice import choose_overlap
from llm_engine.parallel.overlap_context import OverlappedContext
from llm_engine.parallel.overlap_probe import CUTS, Prober
from llm_engine.parallel.overlap_rows import GatheredLayers
from llm_engine.parallel.rank_ops import RankOps

WHERE = "llm engine, ranks, prefill"
LEAST_TOKENS = 64  # below it a chunk's products are bound by their weights, and no cut pays


def can_overlap(layout: Layout) -> bool:
    """Whether the layout's only exchanges within layers are sums of all rows, or gathered keys."""
    if layout.pp > 1:
        return False
    if layout.cp == 1:
        return layout.tp > 1 or layout.ep > 1
    return shares_rows(layout) and layout.tp == layout.ep == 1


def shares_rows(layout: Layout) -> bool:
    """Whether ranks hold rows, whose keys are gathered."""
    return layout.cp > 1 and layout.exchange == "gather"


class OverlappedSteps:
    """Decides by the number of tokens, once each power of two, on all ranks alike."""

    def __init__(self, model: CausalModel, ops: RankOps, prober: Prober, ledger: Ledger) -> None:
        """Nothing is measured before a prompt is long enough to be cut."""
        self._model, self._ops, self._prober, self._ledger = model, ops, prober, ledger
        self._num_chunks: dict[int, int] = {}

    def num_chunks(self, num_tokens: int) -> int:
        """In how many chunks a step is computed; all ranks ask at the same time."""
        if num_tokens < LEAST_TOKENS:
            return 1
        bucket = bucket_of(num_tokens)
        if bucket not in self._num_chunks:
            self._num_chunks[bucket] = self._decided(bucket)
        return self._num_chunks[bucket]

    def forget(self) -> None:
        """Measure and decide anew, with every rank of a group that was founded anew."""
        self._num_chunks.clear()

    def hidden(self, steps: Sequence[Step]) -> list[torch.Tensor]:
        """Final hidden states (N, C) of each chunk; a chunk attends to those before it."""
        embedded = [self._embedded(step) for step in steps]
        updates, mesh = embedded[0][1], self._ops.mesh
        if shares_rows(self._ops.layout):
            rows = [x_NC for x_NC, _ in embedded]
            OverlappedContext(GatheredLayers(updates, steps), mesh.cp)(rows)
            return rows
        pairs = zip(embedded, steps, strict=True)
        chunks = [TokenChunk(x_NC, step) for (x_NC, _), step in pairs]
        OverlappedLayers(updates, mesh.tp, of_mlps=updates.sums_second)(chunks)
        return [chunk.x_NC for chunk in chunks]

    def _embedded(self, step: Step) -> tuple[torch.Tensor, RankUpdates]:
        recorder = BlockRecorder(self._ops)
        x_NC = self._model.hidden(step, recorder)
        return x_NC, RankUpdates(self._ops, recorder)

    def _decided(self, num_tokens: int) -> int:
        one = Step(torch.zeros(1, dtype=torch.int64), _no_attention)
        x_1C, updates = self._embedded(one)
        probe = self._prober(updates, x_1C[0], num_tokens, self._ops.mesh.world)
        num_chunks, decision = choose_overlap(num_tokens, probe.costs, WHERE, CUTS[1:])
        if shares_rows(self._ops.layout):
            bits = "turns alternate, so that ranks attend to equally many keys"
        elif num_chunks == 1 or num_chunks in probe.exact_cuts:
            bits = "in the probe the bits of the step in one piece"
        else:
            bits = "attention's tiles follow the cut: not the bits of the step in one piece"
        self._ledger.record(replace(decision, reasons=(*decision.reasons, bits)))
        return num_chunks


def _no_attention(*_: object) -> torch.Tensor:
    raise AssertionError("recording a model's blocks attends to nothing")
