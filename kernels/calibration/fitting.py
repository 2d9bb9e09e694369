"""Constants fitted to measured times: none negative, and their error on what they did not see."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.calibration.work import Fit


@dataclass(frozen=True, slots=True)
class Sample:
    """Terms, the time that they explain, and the whole time that an error is a share of.

    Samples of one `group` are left out together, and their times added: a whole is judged, not
    its parts. Without one a sample is its own. What is squared is an error over `unit_s`, the
    whole time where there is none: equal units where times are added up.
    """

    terms: tuple[float, ...]
    explained_s: float
    whole_s: float
    group: str = ""
    unit_s: float = 0.0


def fit(samples: Sequence[Sample]) -> Fit:
    """Least squares of errors, each over its unit, with constants of at least 0.

    Few terms: every subset of them is solved without the bound, and of those whose constants
    are all positive the one with the least squares is the bounded optimum.
    Raises: ValueError for too few samples, or too few beside one group.
    """
    num_terms = len(samples[0].terms) if samples else 0
    if len(samples) <= num_terms:
        raise ValueError(f"{len(samples)} samples for {num_terms} constants: measure more sizes")
    errors: list[float] = []
    for left_out in _groups(samples):
        kept = [sample for i, sample in enumerate(samples) if i not in left_out]
        if len(kept) < num_terms:
            raise ValueError(f"{len(kept)} samples without a group for {num_terms} constants")
        errors.append(abs(_off(_solve(kept), [samples[i] for i in sorted(left_out)])))
    return Fit(
        constants=_solve(samples),
        error=statistics.median(errors),
        num_samples=len(samples),
    )


def _groups(samples: Sequence[Sample]) -> list[set[int]]:
    found: dict[object, set[int]] = {}
    for i, sample in enumerate(samples):
        found.setdefault(sample.group or i, set()).add(i)
    return list(found.values())


def _off(constants: Sequence[float], left_out: Sequence[Sample]) -> float:
    predicted_s = sum(c * t for s in left_out for c, t in zip(constants, s.terms, strict=True))
    explained_s = sum(sample.explained_s for sample in left_out)
    return (predicted_s - explained_s) / sum(sample.whole_s for sample in left_out)


def _solve(samples: Sequence[Sample]) -> tuple[float, ...]:
    num_terms = len(samples[0].terms)
    weights = torch.tensor([1 / (s.unit_s or s.whole_s) for s in samples], dtype=torch.float64)
    design = torch.tensor([s.terms for s in samples], dtype=torch.float64) * weights[:, None]
    wanted = torch.tensor([s.explained_s for s in samples], dtype=torch.float64) * weights
    scale = design.abs().amax(0).clamp(min=1e-300)
    best, least = torch.zeros(num_terms, dtype=torch.float64), float(wanted.square().sum())
    for count in range(1, num_terms + 1):
        for chosen in itertools.combinations(range(num_terms), count):
            columns = design[:, chosen] / scale[list(chosen)]
            solved = torch.linalg.lstsq(columns, wanted[:, None]).solution[:, 0]
            squares = float((columns @ solved - wanted).square().sum())
            if bool((solved >= 0).all()) and squares < least:
                best, least = torch.zeros_like(best), squares
                best[list(chosen)] = solved / scale[list(chosen)]
    return tuple(best.tolist())
