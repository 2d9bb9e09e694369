"""One rank's side of measuring computing: every kind of work over a grid of sizes.

Legend: M rows, N columns, K depth, S queries, L keys, H heads, D head dim, T rows, C channels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.calibration.seat import Seat
from kernels.calibration.timing import quiet_median_s
from kernels.calibration.work import Work
from kernels.ops.full_attention import full_attention
from kernels.ops.gemm import gemm
from kernels.ops.rms_norm import rms_norm
from kernels.ops.swiglu import swiglu

# Sizes that no validated step has: what is predicted is never what was measured.
_ROWS = (24, 56, 120, 224, 448)
_MATRICES = ((320, 448), (448, 320), (704, 448), (448, 704), (1408, 576), (576, 1408), (1600, 320))
_QUERIES = (48, 88, 176, 336)
_KEYS = (56, 200, 440)
_HEADS = ((3, 64), (5, 64), (7, 64))
_SHEETS = ((40, 320), (120, 448), (200, 704), (440, 576), (320, 1408))
# A model's weights come from memory each time; what was just computed is still in a cache.
_COLD_FLOATS = 16 << 20
_WARM_COPIES = 2
_REPEATS = 5
_PRODUCT_BETWEEN, _ROWS_BETWEEN = (96, 448, 320), Work("norm", (120, 448))
EPS = 1e-6


def grid() -> list[Work]:
    """Everything that is measured."""
    products = [Work("gemm", (M, N, K)) for M, (N, K) in itertools.product(_ROWS, _MATRICES)]
    attention = [
        Work("attention", (S, L, H, D))
        for S, L, (H, D) in itertools.product(_QUERIES, _KEYS, _HEADS)
    ]
    kinds = ("norm", "gate", "add", "copy", "rows", "scatter")
    return products + attention + [Work(k, sheet) for k in kinds for sheet in _SHEETS]


def measure_works(seat: Seat, works: Sequence[Work]) -> list[float]:
    """This rank's undisturbed median time of every work, one after the other. Units: seconds.

    One round of several: what disturbs the machine for a while then meets every work once, and
    none in all of its rounds. Each run follows one of the other sort that is not timed, row work
    a product and a product row work, as in a model, where nothing runs twice in a row: in a loop
    of its own a short call finds its code and rows in the nearest cache and takes a third of what
    it takes there.
    """
    products = "gemm", "attention"
    others = _gemm(_PRODUCT_BETWEEN), _rowwise(_ROWS_BETWEEN)
    found: list[float] = []
    for work in works:
        key = f"run {work}"
        if key not in seat.memory:
            seat.memory[key] = _runner(work)
        before = others[work.kind in products]
        found.append(quiet_median_s(seat.memory[key], _REPEATS, before=before))
    return found


def _runner(work: Work) -> Callable[[], object]:
    makers = {"gemm": _gemm, "attention": _attention}
    return makers[work.kind](work.sizes) if work.kind in makers else _rowwise(work)


def _copies(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape) for _ in range(_WARM_COPIES)]


@functools.lru_cache(maxsize=1)
def _memory() -> torch.Tensor:
    """More than the caches hold; weights are cut from it in turn."""
    return torch.randn(_COLD_FLOATS)


def _weights(N: int, K: int) -> Iterator[torch.Tensor]:
    return itertools.cycle(part.view(N, K) for part in _memory().split(N * K)[:-1])


def _gemm(sizes: tuple[int, ...]) -> Callable[[], object]:
    M, N, K = sizes
    x_MK = torch.randn(M, K)
    weights = _weights(N, K)
    return lambda: gemm(x_MK, next(weights))


def _attention(sizes: tuple[int, ...]) -> Callable[[], object]:
    S, L, H, D = sizes
    q_SHD = torch.randn(S, H, D)
    pairs = itertools.cycle(_copies(2, L, H, D))
    return lambda: full_attention(q_SHD, *next(pairs).unbind())


def _rowwise(work: Work) -> Callable[[], object]:
    T, C = work.sizes
    sheets = itertools.cycle(_copies(T, 2 * C if work.kind == "gate" else C))
    other_TC, weight_C = torch.randn(T, C), torch.ones(C)
    index_T = torch.randperm(T)
    runs: dict[str, Callable[[], object]] = {
        "norm": lambda: rms_norm(next(sheets), weight_C, eps=EPS),
        "gate": lambda: swiglu(next(sheets)),
        "add": lambda: next(sheets) + other_TC,
        "copy": lambda: other_TC.copy_(next(sheets)),
        "rows": lambda: next(sheets).index_select(0, index_T),
        "scatter": lambda: other_TC.index_add_(0, index_T, next(sheets)),
    }
    return runs[work.kind]
