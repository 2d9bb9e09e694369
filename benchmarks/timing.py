"""Times of several calls side by side: interleaved, from cold caches, as medians and spreads.

Rounds go through all calls in turn, so that what else the machine does falls on each alike; a
ratio is taken round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
Samples = Mapping[str, tuple[float, ...]]

# A buffer well above any last-level cache; on a GPU its clearing also hides the launch behind it.
CPU_EVICTION_BYTES = 64 << 20
GPU_EVICTION_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: rounds between two bounds, as many as fit into `budget_s`."""

    budget_s: float
    min_rounds: int = 7
    max_rounds: int = 60


QUICK = Effort(budget_s=0.15, min_rounds=3, max_rounds=10)
FULL = Effort(budget_s=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles of the samples. Units: seconds."""

    p20: float
    p50: float
    p80: float


def spread(samples: Sequence[float]) -> Spread:
    """20th, 50th and 80th percentile of one or more samples."""
    if len(samples) == 1:
        return Spread(p20=samples[0], p50=samples[0], p80=samples[0])
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    return Spread(p20=fifths[0], p50=statistics.median(samples), p80=fifths[3])


def median_ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median over the rounds of theirs / ours: above 1 where ours is faster."""
    return statistics.median(t / o for t, o in zip(theirs, ours, strict=True))


class Stopwatch:
    """Times one call at a time on a device, each from cold caches.

    Invariants: on a GPU `seconds` is the device's own time between two events.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        size = CPU_EVICTION_BYTES if device.type == "cpu" else GPU_EVICTION_BYTES
        self._buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def seconds(self, call: Call) -> float:
        """Time of one call, finished."""
        if self.device.type == "cpu":
            self._buffer.add_(1)
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._buffer.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def interleaved(calls: Mapping[str, Call], watch: Stopwatch, effort: Effort) -> Samples:
    """Samples of every call, the same number each; two rounds of warm-up come first.

    Raises: whatever a call raises.
    """
    for _ in range(2):
        for call in calls.values():
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(effort.max_rounds):
        if done >= effort.min_rounds and time.perf_counter() - start > effort.budget_s:
            break
        for name, call in calls.items():
            samples[name].append(watch.seconds(call))
    return {name: tuple(values) for name, values in samples.items()}
