"""Functions of rows in tiles of one size, so that a row never depends on those beside it.

A library's matrix product sums a row in another order when it has other rows, or another number of
them, to spread over its registers and threads. In tiles every product has the same number of rows,
filled up with zeros: what a row becomes depends on the row alone, not on the batch, not on how the
prompt was cut into chunks, not on what the cache held.
"""

# N tokens of a step, T rows of a tile, I inputs and O outputs of a map, C channels.

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from llm_engine.layers.linear import Linear

TILE_ROWS = 16
# From one more value on torch shares out a pointwise pass (at::internal::GRAIN_SIZE).
_ONE_THREAD_VALUES = (1 << 15) - 1

RowMap = Callable[[torch.Tensor], torch.Tensor]
# How a map of rows is applied to the rows of a step. Shapes: x (N, I); result (N, O).
OverRows = Callable[[RowMap, torch.Tensor], torch.Tensor]


def at_once(row_map: RowMap, x_NI: torch.Tensor) -> torch.Tensor:
    """All rows in one call."""
    return row_map(x_NI)


def in_tiles(row_map: RowMap, x_NI: torch.Tensor) -> torch.Tensor:
    """`TILE_ROWS` rows a call; a packed map's rows are independent as they are.

    The native kernels compute each row by itself, in one order.
    """
    if isinstance(row_map, Linear) and row_map.packed is not None:
        return row_map(x_NI)
    return torch.cat([row_map(x_TI) for x_TI in _tiles_of(x_NI)])[: len(x_NI)]


def by_one_thread(swiglu: Callable[..., Any]) -> Callable[..., Any]:
    """The activation over as many rows at once as torch gives to one thread.

    Threads share out values, not rows, and the last few of a thread's share, which fill no vector
    register, go through another exponential.
    """

    def apply(x_NI: torch.Tensor) -> tuple[torch.Tensor, None]:
        num_rows = max(1, _ONE_THREAD_VALUES // max(1, x_NI.shape[1] // 2))
        if len(x_NI) <= num_rows:
            return swiglu(x_NI)
        return torch.cat([swiglu(rows)[0] for rows in x_NI.split(num_rows)]), None

    return apply


def _tiles_of(x_NC: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tiles of rows, the last one filled up with zeros."""
    missing = -len(x_NC) % TILE_ROWS
    return (F.pad(x_NC, (0, 0, 0, missing)) if missing else x_NC).split(TILE_ROWS)
