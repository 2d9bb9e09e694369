"""Random arguments of a case: rows that differ in everything they ask for."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.sampler.rows import Draws, Penalties
from kernels.spec import Case


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normal logits, spread 3, a view with a stride; the last of several rows is greedy."""
    num_rows, vocabulary = case.sizes["B"], case.sizes["V"]
    wide = 3 * torch.randn(num_rows, vocabulary + 4, generator=generator)
    logits_BV = wide.to(TORCH_DTYPES[case.dtype])[:, :vocabulary]
    penalties, bias_BV = None, None
    if case.options.get("penalties") == "yes":
        penalties = _penalties(num_rows, vocabulary, generator)
        bias_BV = torch.zeros(num_rows, vocabulary)
        bias_BV[:, ::5] = float("-inf")
    draws = _draws(num_rows, case.options.get("top") == "yes", generator)
    return (logits_BV, draws, penalties, bias_BV), {}


def _draws(num_rows: int, has_top: bool, generator: torch.Generator) -> Draws:
    temperature_B = 0.5 + torch.rand(num_rows, generator=generator)
    if num_rows > 1:
        temperature_B[-1] = 0.0
    row_B = torch.arange(num_rows)
    return Draws(
        temperature=temperature_B,
        seed=torch.randint(-(2**62), 2**62, (num_rows,), generator=generator),
        counter=torch.randint(0, 2**40, (num_rows,), generator=generator),
        top_k=(20 * (row_B % 2)).int() if has_top else None,
        top_p=torch.where(row_B % 3 < 2, 0.8, 1.0) if has_top else None,
        min_p=torch.where(row_B % 4 == 2, 0.05, 0.0) if has_top else None,
    )


def _penalties(num_rows: int, vocabulary: int, generator: torch.Generator) -> Penalties:
    shape = (num_rows, vocabulary)
    return Penalties(
        repetition=1 + torch.rand(num_rows, generator=generator),
        presence=torch.rand(num_rows, generator=generator),
        frequency=torch.rand(num_rows, generator=generator) / 2,
        prompt=torch.rand(shape, generator=generator) < 0.2,
        counts=torch.randint(0, 4, shape, generator=generator).clamp_(min=1).sub_(1).int(),
    )
