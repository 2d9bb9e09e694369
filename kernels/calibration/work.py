"""Pieces of computing as data, and what their time is taken to grow with.

Legend: M rows, N columns, K depth, S queries, L keys, H heads, D head dim, T rows, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Work:
    """One call of an operation: its kind and sizes, in float32.

    Kinds: gemm (M, N, K) · attention (S, L, H, D) · norm (T, C) · gate (T, C of the result) ·
    add (T, C) · copy (T, C) · rows (T, C), a gather by index · scatter (T, C), added by index.
    """

    kind: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """t = sum of constants times terms.

    `error` is the median |predicted - t| / t over samples that were each left out of the fit in
    turn (0.04: four per cent); `num_samples` how many.
    """

    constants: tuple[float, ...]
    error: float
    num_samples: int

    def seconds(self, terms: Sequence[float]) -> float:
        """The time for these terms."""
        return sum(c * term for c, term in zip(self.constants, terms, strict=True))


def _gemm(sizes: tuple[int, ...]) -> tuple[float, ...]:
    M, N, K = sizes
    return 1.0, 2.0 * M * N * K, _FLOAT_BYTES * N * K, _FLOAT_BYTES * M * (N + K)


def _attention(sizes: tuple[int, ...]) -> tuple[float, ...]:
    S, L, H, D = sizes
    return 1.0, 4.0 * S * L * H * D, S * L * H, _FLOAT_BYTES * 2.0 * L * H * D


def _rowwise(sizes: tuple[int, ...]) -> tuple[float, ...]:
    T, C = sizes
    return 1.0, _FLOAT_BYTES * T * C


FEATURES: Mapping[str, Callable[[tuple[int, ...]], tuple[float, ...]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "norm": _rowwise,
    "gate": _rowwise,
    "add": _rowwise,
    "copy": _rowwise,
    "rows": _rowwise,
    "scatter": _rowwise,
}
# What a feature's constant is: a start, then what each unit takes.
UNITS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("call", "flop", "weight byte", "row byte"),
    "attention": ("call", "flop", "score", "key byte"),
    **{kind: ("call", "byte") for kind in FEATURES if kind not in ("gemm", "attention")},
}


def features(work: Work) -> tuple[float, ...]:
    """The terms whose sum, each times its constant, is the time of the work."""
    return FEATURES[work.kind](work.sizes)
