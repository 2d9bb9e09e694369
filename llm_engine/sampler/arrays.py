"""Array types, and the two operations that every part of the sampler shares."""

# R rows, V vocabulary, G tokens of a column, C columns: token g * C + c is entry g of column c.

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COLUMN_TOKENS = 64
# torch starts its threads from 32768 elements on.
_PIECE = 32752


def columns_of(num_rows: int, vocab_size: int) -> tuple[Floats, Floats]:
    """Room for rows whose tokens lie in columns: (R, G, C), and its view (R, V).

    Neighbouring tokens lie in neighbouring columns, so that sums and maxima of columns run over
    whole vectors. Entries past the vocabulary are -inf.
    """
    num_columns = -(-vocab_size // COLUMN_TOKENS)
    room_RP = np.empty((num_rows, COLUMN_TOKENS * num_columns), dtype=np.float32)
    room_RP[:, vocab_size:] = -np.inf
    return room_RP.reshape(num_rows, COLUMN_TOKENS, num_columns), room_RP[:, :vocab_size]


def exp_in_place(values: npt.NDArray[Any]) -> None:
    """e to the power of each element of a contiguous float32 array, on the calling thread."""
    flat = torch.from_numpy(values.reshape(-1))
    for piece in flat.split(_PIECE):
        piece.exp_()
