"""Seconds of a step by cause, with the error of each cause."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds by what they are spent on; `latency` is starts of kernels and of exchanges.

    Also used for shares: the relative error of each cause.
    """

    gemm: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    wire: float = 0.0
    latency: float = 0.0

    def __add__(self, other: Parts) -> Parts:
        # Written out: a plan adds some hundred thousand of these.
        return Parts(
            gemm=self.gemm + other.gemm,
            attention=self.attention + other.attention,
            memory=self.memory + other.memory,
            wire=self.wire + other.wire,
            latency=self.latency + other.latency,
        )

    def __mul__(self, factor: float) -> Parts:
        return Parts(
            gemm=self.gemm * factor,
            attention=self.attention * factor,
            memory=self.memory * factor,
            wire=self.wire * factor,
            latency=self.latency * factor,
        )

    @property
    def total_s(self) -> float:
        """All causes, one after the other."""
        return sum(getattr(self, f.name) for f in _CAUSES)

    @property
    def compute_s(self) -> float:
        """What a device does by itself; starts of exchanges count as transfers."""
        return self.gemm + self.attention + self.memory

    @property
    def binds(self) -> str:
        """The largest cause."""
        return max((f.name for f in _CAUSES), key=lambda name: getattr(self, name))

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return {f.name: getattr(self, f.name) for f in _CAUSES}

    def error_s(self, errors: Parts) -> float:
        """Half the width of the interval: independent errors of the causes."""
        squares = ((getattr(self, f.name) * getattr(errors, f.name)) ** 2 for f in _CAUSES)
        return math.sqrt(sum(squares))

    def difference_error_s(self, other: Parts, errors: Parts) -> float:
        """Error of the difference of two steps on one machine: what they share cancels."""
        return (self + other * -1.0).error_s(errors)


_CAUSES = fields(Parts)
