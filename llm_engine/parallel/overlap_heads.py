"""A prompt's layers with rows on ranks and heads while attending: exchanges under other chunks."""

# N rows of a chunk on this rank, C channels, P heads of rows, D head dim.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.row_builders import HeadWork, head_split
from kernels.collectives.schedules.threads import Actions, Ran, run_serially, run_threads
from llm_engine.layers.step import Step
from llm_engine.parallel.exchange import HeadExchange
from llm_engine.parallel.overlap_blocks import RankUpdates

_NOTHING = HeadWork(project_s=0.0, attend_s=0.0, finish_s=0.0, go_bytes=0, back_bytes=0)


def head_split_layers(size: int, num_layers: int, num_chunks: int) -> Schedule:
    """The schedule that both runs carry out."""
    return head_split(size, [[_NOTHING] * num_chunks] * num_layers)


class OverlappedHeads:
    """All layers of one rank's rows of each chunk; every rank holds whole weights.

    Numerics: an exchange with the contract `exact` moves bits, so the result is that of the same
    chunks one after the other (`is_overlapped=False`).
    Raises: what a computation or an exchange raised, once no thread of the run is left.
    """

    def __init__(
        self, updates: RankUpdates, steps: Sequence[Step], contract: Contract = "exact"
    ) -> None:
        """A step for each chunk, whose attention is a `HeadExchange`."""
        self._updates, self._steps = updates, steps
        self._contract: Contract = contract
        self._schedule = functools.lru_cache(maxsize=16)(head_split_layers)

    def __call__(
        self, chunks: list[torch.Tensor], rank: int, size: int, *, is_overlapped: bool = True
    ) -> list[Ran]:
        """Replace each x (N, C) of the list by the hidden states after the last layer.

        Returns: when each node ran.
        """
        schedule = self._schedule(size, self._updates.num_layers, len(chunks))
        run = run_threads if is_overlapped else run_serially
        works = [
            _ChunkWork(self._updates, step, chunks, index, self._contract)
            for index, step in enumerate(self._steps)
        ]
        return run(schedule, rank, self._actions(works))

    def _actions(self, works: Sequence[_ChunkWork]) -> Actions:
        # Whether inference mode is on belongs to a thread; the wire's has to be told.
        mode = torch.inference_mode(torch.is_inference_mode_enabled())
        actions: dict[str, Callable[[], object]] = {}
        for index, work in enumerate(works):
            for layer in range(self._updates.num_layers):
                here = f"{layer}.{index}"
                actions[f"project.{here}"] = functools.partial(work.project, layer)
                actions[f"go.{here}"] = mode(work.go)
                actions[f"attend.{here}"] = functools.partial(work.attend, layer)
                actions[f"back.{here}"] = mode(work.come_back)
                actions[f"finish.{here}"] = functools.partial(work.finish, layer)
        return actions


class _ChunkWork:
    """A chunk on its way through the layers, with the heads that are under way."""

    def __init__(
        self,
        updates: RankUpdates,
        step: Step,
        chunks: list[torch.Tensor],
        index: int,
        contract: Contract,
    ) -> None:
        assert isinstance(step.attend, HeadExchange), "rows are shared out, attended by heads"
        self._updates, self._step, self._exchange = updates, step, step.attend
        self._chunks, self._index = chunks, index
        self._contract: Contract = contract
        self._heads_PD = chunks[index].new_empty(0, 0)

    def project(self, layer: int) -> None:
        heads = self._updates.heads(layer, self._chunks[self._index], self._step)
        self._heads_PD = self._exchange.packed(*heads)

    def go(self) -> None:
        self._heads_PD = self._exchange.go(self._heads_PD, self._contract)

    def attend(self, layer: int) -> None:
        self._heads_PD = self._exchange.attend(layer, self._heads_PD)

    def come_back(self) -> None:
        self._heads_PD = self._exchange.come_back(self._heads_PD, self._contract)

    def finish(self, layer: int) -> None:
        o_NHD = self._exchange.joined(self._heads_PD)
        x_NC = self._chunks[self._index]
        x_NC = x_NC + self._updates.output(layer, o_NHD, self._step)
        self._chunks[self._index] = x_NC + self._updates.mlp_update(layer, x_NC, self._step)
