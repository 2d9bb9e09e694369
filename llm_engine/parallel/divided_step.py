"""A step whose rows are divided by their sequences: each part of the ranks attends for its own."""

# N rows of this rank, H query heads, K key/value heads, D head dim.

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_engine.layers.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep(Step):
    """The rows of each rank along dp, and of all that have other rows; N is among both."""

    dp_counts: tuple[int, ...]
    row_counts: tuple[int, ...]


def attend_to_nothing(
    layer: int, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor, /
) -> torch.Tensor:
    """See `llm_engine.layers.step.Attend`, of a rank without rows in this step."""
    del layer, k_NKD, v_NKD
    return q_NHD
