"""Log probabilities of chosen tokens and of the likeliest ones, under the logits as given."""

# R rows, V vocabulary, G tokens of a column, C columns, K likeliest tokens.

import math
from collections.abc import Sequence

import numpy as np

from llm_engine.sampler.arrays import COLUMN_TOKENS, Floats, columns_of, exp_in_place

Score = tuple[float, tuple[tuple[int, float], ...]]


def score(logits_RV: Floats, token_ids: Sequence[int], num_top: int) -> list[Score | None]:
    """Each row's log probability of its token, and its `num_top` likeliest tokens, best first.

    Among equals the lower token comes first. A row whose logits are not finite yields None.
    """
    return [
        _score_row(logits_V, token_id, num_top)
        for logits_V, token_id in zip(logits_RV, token_ids, strict=True)
    ]


def _score_row(logits_V: Floats, token_id: int, num_top: int) -> Score | None:
    largest = float(logits_V.max())
    room_1GC, values_1V = columns_of(1, len(logits_V))
    np.subtract(logits_V, np.float32(largest), out=values_1V[0])
    top = _likeliest(room_1GC[0], num_top)
    exp_in_place(room_1GC)
    total = float(room_1GC.sum(axis=1).sum(dtype=np.float64))
    if not math.isfinite(total):
        return None
    norm = largest + math.log(total)
    entries = tuple((i, float(logits_V[i]) - norm) for i in top)
    return float(logits_V[token_id]) - norm, entries


def _likeliest(values_GC: Floats, num_top: int) -> list[int]:
    """The largest entries lie in the columns with the largest maxima."""
    if num_top == 0:
        return []
    num_columns = values_GC.shape[1]
    columns = np.arange(num_columns)
    if num_top < num_columns:
        maxima_C = values_GC.max(axis=0)
        lowest = np.partition(maxima_C, num_columns - num_top)[num_columns - num_top]
        columns = np.flatnonzero(maxima_C >= lowest)
    entries = values_GC[:, columns].reshape(-1)
    ids = (np.arange(COLUMN_TOKENS)[:, None] * num_columns + columns).reshape(-1)
    best = np.lexsort((ids, -entries))[:num_top]
    return ids[best[np.isfinite(entries[best])]].tolist()
