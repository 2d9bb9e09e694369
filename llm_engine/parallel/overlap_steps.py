"""Steps of one rank whose exchanges travel while other rows compute, where that pays."""

# N rows of a chunk, C channels.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.choice import bucket_of
from kernels.collectives.protocol import Communicator
from kernels.ledger import Ledger
from llm_engine.layers.step import Step
from llm_engine.models.base import CausalModel
from llm_engine.parallel.layout import Layout, Phase
from llm_engine.parallel.overlap import (
    Build,
    OverlappedLayers,
    TokenChunk,
    micro_batch_layers,
    token_split_layers,
)
from llm_engine.parallel.overlap_blocks import BlockRecorder, RankUpdates
from llm_engine.parallel.overlap_choice import choose_overlap, choose_wire, predicted_s
from llm_engine.parallel.overlap_context import OverlappedContext
from llm_engine.parallel.overlap_heads import OverlappedHeads
from llm_engine.parallel.overlap_policy import LEAST_ROWS, OverlapPolicy
from llm_engine.parallel.overlap_probe import CUTS, Probe
from llm_engine.parallel.overlap_rows import GatheredLayers
from llm_engine.parallel.rank_ops import RankOps

_SCHEDULES: Mapping[Phase, Build] = {"prefill": token_split_layers, "decode": micro_batch_layers}


def shares_rows(layout: Layout) -> bool:
    """Whether ranks hold rows, whose keys are gathered."""
    return layout.cp > 1 and layout.exchange == "gather"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Into how many chunks a step is cut, and what its exchanges within layers travel as."""

    num_chunks: int = 1
    contract: Contract = "exact"

    @property
    def is_plain(self) -> bool:
        """Whether it is the whole step with exact exchanges, one after the other."""
        return self.num_chunks == 1 and self.contract == "exact"


class Probes(Protocol):
    """See `llm_engine.parallel.overlap_probe.Prober`."""

    def __call__(
        self,
        updates: RankUpdates,
        like_C: torch.Tensor,
        num_tokens: int,
        world: Communicator,
        contracts: Sequence[Contract] = ...,
    ) -> Probe:
        """Measure steps of so many rows."""
        ...


class OverlappedSteps:
    """Decides by the number of rows, once each power of two, on all ranks alike.

    Rows are the tokens of prompts, or of answers one each: then chunks are micro-batches.
    """

    def __init__(
        self,
        model: CausalModel,
        ops: RankOps,
        prober: Probes,
        ledger: Ledger,
        policy: OverlapPolicy | None = None,
    ) -> None:
        """Nothing is measured before a step is large enough to be cut. Without policy: auto."""
        self._model, self._ops, self._prober, self._ledger = model, ops, prober, ledger
        self._policy = policy or OverlapPolicy()
        self._plans: dict[int, StepPlan] = {}

    def plan(self, num_tokens: int) -> StepPlan:
        """How a step is computed; all ranks ask at the same time."""
        most_pieces = CUTS[-1] * self._ops.layout.cp  # every rank has rows of every chunk
        least = max(LEAST_ROWS[self._policy.phase], most_pieces)
        if num_tokens < least or self._policy.is_blocking:
            return StepPlan()
        bucket = bucket_of(num_tokens)
        if bucket not in self._plans:
            self._plans[bucket] = self._decided(bucket)
        return self._plans[bucket]

    def forget(self) -> None:
        """Measure and decide anew, with every rank of a group that was founded anew."""
        self._plans.clear()

    def hidden(self, steps: Sequence[Step], plan: StepPlan) -> list[torch.Tensor]:
        """Final hidden states (N, C) of each chunk; one of a prompt attends to those before it."""
        if self._ops.layout.dp > 1:
            return [self._in_pieces(step, plan.num_chunks) for step in steps]
        embedded = [self._embedded(step) for step in steps]
        updates, mesh, layout = embedded[0][1], self._ops.mesh, self._ops.layout
        rows = [x_NC for x_NC, _ in embedded]
        if shares_rows(layout):
            OverlappedContext(GatheredLayers(updates, steps), mesh.cp, plan.contract)(rows)
            return rows
        if layout.cp > 1:
            group = mesh.cp.group
            OverlappedHeads(updates, steps, plan.contract)(rows, group.rank, group.size)
            return rows
        chunks = [TokenChunk(x_NC, step) for x_NC, step in zip(rows, steps, strict=True)]
        build = _SCHEDULES[self._policy.phase]
        run = OverlappedLayers(updates, mesh.tp, plan.contract, updates.sums_second, build)
        run(chunks)
        return [chunk.x_NC for chunk in chunks]

    def _in_pieces(self, step: Step, count: int) -> torch.Tensor:
        """A step whose rows meet others' in each MLP; adapters know their rows by the whole."""
        ops = self._ops if step.adapters is not None else self._ops.in_pieces(count)
        return self._model.hidden(step, ops)

    def _embedded(self, step: Step) -> tuple[torch.Tensor, RankUpdates]:
        recorder = BlockRecorder(self._ops)
        x_NC = self._model.hidden(step, recorder)
        return x_NC, RankUpdates(self._ops, recorder)

    def _decided(self, num_tokens: int) -> StepPlan:
        one = Step(torch.zeros(1, dtype=torch.int64), _no_attention)
        x_1C, updates = self._embedded(one)
        policy, counts = self._policy, CUTS[1:]
        contracts: tuple[Contract, ...] = ("exact",)
        if policy.wire != "exact":
            contracts = ("exact", "int8")
        world = self._ops.mesh.world
        probe = self._prober(updates, x_1C[0], num_tokens, world, contracts)
        contract: Contract = "exact"
        if policy.wire != "exact":
            seconds: dict[Contract, float] = {
                each: predicted_s(num_tokens, probe.costs[each], counts, asked=policy.overlap)
                for each in contracts
            }
            contract, decision = choose_wire(
                num_tokens, seconds, probe.errors, policy.where, asked=policy.wire
            )
            self._ledger.record(decision)
        if policy.overlap == "off":
            return StepPlan(1, contract)
        num_chunks, decision = choose_overlap(
            num_tokens, probe.costs[contract], policy.where, counts, asked=policy.overlap
        )
        bits = self._bits(num_chunks, contract, probe)
        self._ledger.record(replace(decision, reasons=(*decision.reasons, bits)))
        return StepPlan(num_chunks, contract)

    def _bits(self, num_chunks: int, contract: Contract, probe: Probe) -> str:
        """What the cut does to the numbers."""
        layout = self._ops.layout
        if contract != "exact":
            return "blocks of the wire follow the cut: not the bits of the step in one piece"
        if shares_rows(layout):
            return "turns alternate, so that ranks attend to equally many keys"
        if layout.cp > 1:
            return "heads move as they are: the bits of the same chunks in turn"
        if num_chunks == 1 or num_chunks in probe.exact_cuts:
            return "in the probe the bits of the step in one piece"
        return "attention's tiles follow the cut: not the bits of the step in one piece"


def _no_attention(*_: object) -> torch.Tensor:
    raise AssertionError("recording a model's blocks attends to nothing")
