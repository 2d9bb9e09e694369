"""A step whose rows are divided by their sequences: each part of the ranks attends for its own."""

# N rows of this rank, M of all, H query heads, K key/value heads, D head dim, C channels.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.collectives.protocol import Communicator
from llm_engine.layers.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep(Step):
    """The rows of each rank along dp, and of all that have other rows; N is among both."""

    dp_counts: tuple[int, ...]
    row_counts: tuple[int, ...]


def over_all_rows(
    rows: Communicator,
    x_NC: torch.Tensor,
    row_counts: tuple[int, ...],
    term: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """This rank's rows of the sum over ranks of what each `term` gives for all rows.

    Shapes: x and result (N, C); `term` maps (M, C) to (M, C).
    """
    return rows.reduce_scatter(term(rows.all_gather(x_NC)), row_counts)


def attend_to_nothing(
    layer: int, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor, /
) -> torch.Tensor:
    """See `llm_engine.layers.step.Attend`, of a rank without rows in this step."""
    del layer, k_NKD, v_NKD
    return q_NHD
