"""A step's layers in chunks of rows: one computes while the one before is on the wire."""

# N rows of a chunk, C channels.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.protocol import Communicator
from kernels.collectives.schedules.builders import LayerWork, micro_batches, token_split
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.threads import Actions, Ran, run_serially, run_threads
from llm_engine.layers.step import Step

Run = Callable[[Schedule, int, Actions], list[Ran]]
Build = Callable[[int, int, int], Schedule]  # of ranks, layers, chunks


class LayerUpdates(Protocol):
    """What each layer adds to the hidden states, as one rank's share computes it.

    A share is a term of a sum over all ranks; nothing is exchanged here. x is not changed.
    """

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        ...

    def attention_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """Store the step's keys and values on the way. Shapes: x and result (N, C)."""
        ...

    def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        ...


@dataclass(slots=True, eq=False)
class TokenChunk:
    """Rows of a step. Shapes: x (N, C), replaced as layers are done."""

    x_NC: torch.Tensor
    step: Step


def token_split_layers(
    size: int, num_layers: int, num_chunks: int, wire_bytes: int = 0
) -> Schedule:
    """The schedule that both runs carry out; `wire_bytes` of all chunks, for a prediction."""
    work = LayerWork(attention_s=0.0, mlp_s=0.0, wire_bytes=wire_bytes)
    return token_split(size, [work] * num_layers, [1 / num_chunks] * num_chunks)


def micro_batch_layers(
    size: int, num_layers: int, num_batches: int, wire_bytes: int = 0
) -> Schedule:
    """As `token_split_layers`, of sequences that do not read each other."""
    work = LayerWork(attention_s=0.0, mlp_s=0.0, wire_bytes=wire_bytes)
    return micro_batches(size, [work] * num_layers, num_batches)


class OverlappedLayers:
    """All layers of one rank over chunks of a step.

    Numerics: with the contract `exact` the bits are those of the same chunks one after the other
    (`is_overlapped=False`), which are those of the whole step where products and attention do not
    depend on the rows beside a row: `llm_engine.parallel.overlap_probe` looks.
    Raises: what a computation or an exchange raised, once no thread of the run is left.
    """

    def __init__(
        self,
        updates: LayerUpdates,
        communicator: Communicator,
        contract: Contract = "exact",
        of_mlps: Sequence[Communicator] = (),
        build: Build = token_split_layers,
    ) -> None:
        """Nothing runs yet; the communicator serves nobody else during a run.

        `of_mlps` are those that sum each layer's second updates, where they are others; `build`
        says which chunks wait for which.
        """
        self._updates = updates
        self._communicator = communicator
        self._of_mlps = of_mlps or [communicator] * updates.num_layers
        self._contract: Contract = contract
        self._schedule = functools.lru_cache(maxsize=16)(build)

    def __call__(self, chunks: Sequence[TokenChunk], *, is_overlapped: bool = True) -> list[Ran]:
        """Replace each chunk's x by the hidden states after the last layer.

        Chunks of a prompt are in the order of their tokens: one attends to those before it.
        Returns: when each node ran.
        """
        group = self._communicator.group
        schedule = self._schedule(group.size, self._updates.num_layers, len(chunks))
        run: Run = run_threads if is_overlapped else run_serially
        works = [_ChunkWork(self._updates, chunk) for chunk in chunks]
        ran = run(schedule, group.rank, self._actions(works))
        for work in works:
            work.settle()
        return ran

    def _actions(self, works: Sequence[_ChunkWork]) -> Actions:
        # Whether inference mode is on belongs to a thread; the wire's has to be told.
        mode = torch.inference_mode(torch.is_inference_mode_enabled())
        actions: dict[str, Callable[[], object]] = {}
        for index, work in enumerate(works):
            for layer in range(self._updates.num_layers):
                here = f"{layer}.{index}"
                actions[f"attention.{here}"] = functools.partial(work.attention, layer)
                actions[f"mlp.{here}"] = functools.partial(work.mlp, layer)
                sums = {"attention": self._communicator, "mlp": self._of_mlps[layer]}
                for part, ranks in sums.items():
                    reduce = functools.partial(work.reduce, ranks, self._contract)
                    actions[f"reduce_{part}.{here}"] = mode(reduce)
        return actions


class _ChunkWork:
    """A chunk on its way through the layers, with the update that is not added yet."""

    def __init__(self, updates: LayerUpdates, chunk: TokenChunk) -> None:
        self._updates, self._chunk = updates, chunk
        self._update_NC: torch.Tensor | None = None

    def attention(self, layer: int) -> None:
        self.settle()
        chunk = self._chunk
        self._update_NC = self._updates.attention_update(layer, chunk.x_NC, chunk.step)

    def mlp(self, layer: int) -> None:
        self.settle()
        chunk = self._chunk
        self._update_NC = self._updates.mlp_update(layer, chunk.x_NC, chunk.step)

    def reduce(self, communicator: Communicator, contract: Contract) -> None:
        assert self._update_NC is not None
        communicator.all_reduce(self._update_NC, contract=contract)

    def settle(self) -> None:
        """Add the reduced update; on the computing thread, which the wire's does not delay."""
        if self._update_NC is not None:
            self._chunk.x_NC = self._chunk.x_NC + self._update_NC
            self._update_NC = None
