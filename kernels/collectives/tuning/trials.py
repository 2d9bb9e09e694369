"""One use of an operation with inputs of whole numbers and outputs of nonsense: run, then check.

Whole numbers leave no room for a tolerance, and what an algorithm forgets to write stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.collectives.algorithm import Algorithm
from kernels.collectives.fabric import Fabric
from kernels.collectives.reduction import piece_sizes

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
# Small enough that sums of 64 ranks are whole numbers in bfloat16 too.
_LARGEST = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """`reset` makes inputs and outputs anew, `run` is what is timed, `is_right` compares."""

    reset: Callable[[], object]
    run: Callable[[Algorithm], None]
    is_right: Callable[[], bool]


def make_trial(
    fabric: Fabric, operation: str, count: int, dtype: torch.dtype, device: str = "cpu"
) -> Trial:
    """A trial of `count` elements in all: a message, or the parts of all ranks together."""
    makers = {
        "all_reduce": _all_reduce,
        "reduce_scatter": _reduce_scatter,
        "all_gather": _all_gather,
        "all_to_all": _all_to_all,
        "broadcast": _broadcast,
    }
    with torch.device(device):
        return makers[operation](fabric, count, dtype)


def _held(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    pattern_N = (torch.arange(count) + rank) % (_LARGEST + 1)
    return pattern_N.to(dtype)


def _total(size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([_held(rank, count, torch.float32) for rank in range(size)]).sum(0).to(dtype)


def _nonsense(x_N: torch.Tensor) -> None:
    x_N.fill_(float("nan") if x_N.is_floating_point() else -1)


def _all_reduce(fabric: Fabric, count: int, dtype: torch.dtype) -> Trial:
    group = fabric.group
    mine_N, want_N = _held(group.rank, count, dtype), _total(group.size, count, dtype)
    x_N = mine_N.clone()
    return Trial(
        reset=lambda: x_N.copy_(mine_N),
        run=lambda algorithm: algorithm.run(fabric, x_N, "sum"),
        is_right=lambda: torch.equal(x_N, want_N),
    )


def _reduce_scatter(fabric: Fabric, count: int, dtype: torch.dtype) -> Trial:
    group = fabric.group
    sizes = piece_sizes(count, group.size)
    parts = list(_held(group.rank, count, dtype).split(sizes))
    want_N = _total(group.size, count, dtype).split(sizes)[group.rank]
    out_N = torch.empty_like(want_N)
    return Trial(
        reset=lambda: _nonsense(out_N),
        run=lambda algorithm: algorithm.run(fabric, parts, out_N, "sum"),
        is_right=lambda: torch.equal(out_N, want_N),
    )


def _all_gather(fabric: Fabric, count: int, dtype: torch.dtype) -> Trial:
    group = fabric.group
    sizes = piece_sizes(count, group.size)
    want_N = torch.cat([_held(rank, n, dtype) for rank, n in enumerate(sizes)])
    out_N = torch.empty_like(want_N)
    parts = list(out_N.split(sizes))

    def reset() -> None:
        _nonsense(out_N)
        parts[group.rank].copy_(want_N.split(sizes)[group.rank])

    return Trial(
        reset=reset,
        run=lambda algorithm: algorithm.run(fabric, parts),
        is_right=lambda: torch.equal(out_N, want_N),
    )


def _all_to_all(fabric: Fabric, count: int, dtype: torch.dtype) -> Trial:
    group = fabric.group
    sizes = piece_sizes(count, group.size)
    sent = [
        [_held(7 * source + to, n, dtype) for to, n in enumerate(sizes)]
        for source in range(group.size)
    ]
    want_N = torch.cat([sent[source][group.rank] for source in range(group.size)])
    out_N = torch.empty_like(want_N)
    incoming = list(out_N.split(sizes[group.rank]))
    if not sizes[group.rank]:
        incoming = [out_N[:0] for _ in range(group.size)]
    return Trial(
        reset=lambda: _nonsense(out_N),
        run=lambda algorithm: algorithm.run(fabric, sent[group.rank], incoming, max(sizes)),
        is_right=lambda: torch.equal(out_N, want_N),
    )


def _broadcast(fabric: Fabric, count: int, dtype: torch.dtype) -> Trial:
    group = fabric.group
    want_N = _held(0, count, dtype)
    x_N = torch.empty_like(want_N)

    def reset() -> None:
        if group.rank == 0:
            x_N.copy_(want_N)
        else:
            _nonsense(x_N)

    return Trial(
        reset=reset,
        run=lambda algorithm: algorithm.run(fabric, x_N, 0),
        is_right=lambda: torch.equal(x_N, want_N),
    )
