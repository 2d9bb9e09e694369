"""A prompt's layers with its rows shared out over ranks: keys travel while other rows compute."""

# N rows of a chunk, M rows of all ranks' chunks of one turn, C channels, H query heads,
# K key/value heads, D head dim.

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.protocol import Communicator
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.row_builders import ContextWork, context_split
from kernels.collectives.schedules.threads import Actions, Ran, run_serially, run_threads


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, start + num_tokens) of a prompt, on one rank."""

    start: int
    num_tokens: int


def share_rows(num_tokens: int, size: int, num_chunks: int = 2) -> tuple[tuple[Piece, ...], ...]:
    """Pieces by chunk and rank: [chunk][rank]. Later tokens attend to more, so turns alternate.

    The first pieces go to ranks 0, 1, …, the next ones to …, 1, 0: with two chunks each rank has
    the same causal attention to do. Pieces differ by one token at most.
    """
    num_pieces = size * num_chunks
    bounds = [index * num_tokens // num_pieces for index in range(num_pieces + 1)]
    pieces = [Piece(begin, end - begin) for begin, end in itertools.pairwise(bounds)]
    turns = [pieces[turn * size : (turn + 1) * size] for turn in range(num_chunks)]
    return tuple(tuple(turn[::-1] if i % 2 else turn) for i, turn in enumerate(turns))


class ContextLayers(Protocol):
    """Each layer in two parts, over whole weights: up to the keys, and after they are there."""

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        ...

    def project(self, layer: int, chunk: int, x_NC: torch.Tensor) -> torch.Tensor:
        """Make queries, kept until `attend`, and keys and values. Shapes: result (N, 2, K, D)."""
        ...

    def attend(
        self, layer: int, chunk: int, x_NC: torch.Tensor, kv_M2KD: torch.Tensor
    ) -> torch.Tensor:
        """Store all ranks' rows, in the order of ranks, attend, and do the rest of the layer.

        Shapes: x and result (N, C), the hidden states after the layer.
        """
        ...


def context_split_layers(
    size: int, num_layers: int, num_chunks: int, wire_bytes: int = 0
) -> Schedule:
    """The schedule that both runs carry out; `wire_bytes` of all chunks of a layer."""
    work = ContextWork(project_s=0.0, attend_s=0.0, wire_bytes=wire_bytes // num_chunks)
    return context_split(size, [[work] * num_chunks] * num_layers)


class OverlappedContext:
    """All layers of one rank's chunks of a prompt.

    Numerics: a gather with the contract `exact` moves bits, so the result is that of the same
    chunks one after the other (`is_overlapped=False`). `int8` changes keys and values, alike on
    all ranks.
    Raises: what a computation or an exchange raised, once no thread of the run is left.
    """

    def __init__(
        self, layers: ContextLayers, communicator: Communicator, contract: Contract = "exact"
    ) -> None:
        """Nothing runs yet; the communicator serves nobody else during a run."""
        self._layers = layers
        self._communicator = communicator
        self._contract: Contract = contract
        self._schedule = functools.lru_cache(maxsize=16)(context_split_layers)

    def __call__(self, chunks: list[torch.Tensor], *, is_overlapped: bool = True) -> list[Ran]:
        """Replace each x (N, C) of the list by the hidden states after the last layer.

        Returns: when each node ran.
        """
        group = self._communicator.group
        schedule = self._schedule(group.size, self._layers.num_layers, len(chunks))
        run = run_threads if is_overlapped else run_serially
        return run(schedule, group.rank, self._actions(chunks))

    def _actions(self, chunks: list[torch.Tensor]) -> Actions:
        mode = torch.inference_mode(torch.is_inference_mode_enabled())
        rows: dict[int, torch.Tensor] = {}
        gather = mode(functools.partial(self._gather, rows))
        actions: dict[str, Callable[[], object]] = {}
        for index in range(len(chunks)):
            for layer in range(self._layers.num_layers):
                here = f"{layer}.{index}"
                actions[f"project.{here}"] = functools.partial(
                    self._project, layer, index, chunks, rows
                )
                actions[f"gather.{here}"] = functools.partial(gather, index)
                actions[f"attend.{here}"] = functools.partial(
                    self._attend, layer, index, chunks, rows
                )
        return actions

    def _project(
        self, layer: int, index: int, chunks: Sequence[torch.Tensor], rows: dict[int, torch.Tensor]
    ) -> None:
        rows[index] = self._layers.project(layer, index, chunks[index])

    def _gather(self, rows: dict[int, torch.Tensor], index: int) -> None:
        rows[index] = self._communicator.all_gather(rows[index], contract=self._contract)

    def _attend(
        self, layer: int, index: int, chunks: list[torch.Tensor], rows: dict[int, torch.Tensor]
    ) -> None:
        chunks[index] = self._layers.attend(layer, index, chunks[index], rows.pop(index))
