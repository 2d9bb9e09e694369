"""How long a layer's exchanges take: while ranks do nothing else, and while they compute."""

# C channels.

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.protocol import Communicator
from llm_engine.parallel.overlap_exchange import Exchanged, LayerExchange

_REPEATS = 3
_PARTS = (4, 1)  # of a step's rows: a quarter, and all


@dataclass(frozen=True, slots=True)
class LinkLine:
    """An exchange of b bytes takes `latency_s + b / bytes_s`."""

    latency_s: float
    bytes_s: float

    @classmethod
    def through(cls, seconds: Mapping[int, float]) -> Self:
        """The line through the times of two sizes; without end where the larger is as fast."""
        (small, small_s), (large, large_s) = sorted(seconds.items())
        slope = (large_s - small_s) / max(1, large - small)
        if slope <= 0:
            return cls(large_s, float("inf"))
        return cls(max(0.0, small_s - slope * small), 1 / slope)

    def seconds(self, num_bytes: float) -> float:
        """Of one exchange."""
        return self.latency_s + num_bytes / self.bytes_s


@dataclass(frozen=True, slots=True)
class WireTimes:
    """Of a rank. `num_bytes` of a layer's exchanges, smaller first; `idle_s` and `busy_s` of them.

    Times of each contract follow those of the one before. Units: seconds.
    """

    num_bytes: tuple[int, ...]
    idle_s: list[float]
    busy_s: list[float]

    def lines(self, index: int, idle_s: list[float], busy_s: list[float]) -> list[LinkLine]:
        """Idle and busy, of contract number `index`, through times of as many ranks as one likes.

        All exchanges of a layer are taken together as one.
        """
        place = slice(index * len(self.num_bytes), (index + 1) * len(self.num_bytes))
        return [
            LinkLine.through(dict(zip(self.num_bytes, times[place], strict=True)))
            for times in (idle_s, busy_s)
        ]


def measure_wire(
    exchange: LayerExchange,
    num_tokens: int,
    like_C: torch.Tensor,
    contracts: Sequence[Contract],
    world: Communicator,
    compute: Callable[[], object],
) -> WireTimes:
    """A layer's exchanges for a quarter and for all rows of a step; all ranks at once.

    `compute` is what a rank computes of a chunk meanwhile. Shapes: like (C,), a hidden state.
    """
    sent = [exchange.blank(num_tokens // part, like_C) for part in _PARTS]
    # Ranks have unequal rows, but one line: that of the exchange, by its mean.
    sizes = torch.tensor([sum(each.x.nbytes for each in of_size) for of_size in sent])
    num_bytes = (world.all_reduce(sizes) // world.group.size).tolist()
    idle_s: list[float] = []
    busy_s: list[float] = []
    for contract in contracts:
        for of_size in sent:
            alone: list[float] = []
            beside: list[float] = []
            for _ in range(_REPEATS):
                world.barrier()
                alone.append(_seconds(of_size, contract))
                world.barrier()
                beside.append(
                    while_computing(lambda o=of_size, c=contract: _seconds(o, c), compute)
                )
            # The least is the link's own; what a busy core costs is there each time or not.
            idle_s.append(min(alone))
            busy_s.append(statistics.mean(beside))
    return WireTimes(tuple(num_bytes), idle_s, busy_s)


def while_computing(timed: Callable[[], float], compute: Callable[[], object]) -> float:
    """What `timed` returns in a thread of its own, as in a schedule, while this one computes.

    Raises: what it raised.
    """
    # Whether inference mode is on belongs to a thread; the other has to be told.
    mode = torch.inference_mode(torch.is_inference_mode_enabled())
    with ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(mode(timed))
        while not under_way.done():
            compute()
        return under_way.result()


def _seconds(exchanged: Sequence[Exchanged], contract: Contract) -> float:
    begin_s = time.perf_counter()
    for each in exchanged:
        each.travel(each.x, contract)
    return time.perf_counter() - begin_s
