"""How a model's transformers are called: every branch of a step, through one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from video_engine.models.pipelines import Stock

Inputs = Mapping[str, torch.Tensor]
Outputs = tuple[torch.Tensor, ...]


class Denoiser(Protocol):
    """One or several transformers that a step asks for predictions."""

    def __call__(self, part: str, shared: Inputs, branches: Sequence[Inputs]) -> list[Outputs]:
        """What the transformer named `part` returns for each branch, as the stock class does.

        `shared` are the keyword arguments that all branches have, `branches` those of each alone
        (of guidance: with the prompt, and without).
        """
        ...


# Makes a denoiser of a model's transformers, by name: here, or laid over ranks.
Lay = Callable[[Mapping[str, Stock]], Denoiser]


class StockDenoiser:
    """The stock transformers as they are, one branch after the other."""

    def __init__(self, parts: Mapping[str, Stock]) -> None:
        """Keep the transformers by name."""
        self._parts = parts

    def __call__(self, part: str, shared: Inputs, branches: Sequence[Inputs]) -> list[Outputs]:
        """See the protocol."""
        transformer = self._parts[part]
        return [transformer(**shared, **branch, return_dict=False) for branch in branches]
