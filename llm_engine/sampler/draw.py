"""Drawing one token per row from softmax(logits / temperature), cut by top_k, top_p and min_p.

Rows that keep every token: columns of tokens by their mass, then a token of the column. Rows that
keep some: the candidates in falling order, cut, then one of them by its mass. Either way the
result is the inverse of a cumulated distribution at the row's own uniform number.
"""

# R rows, V vocabulary, G tokens of a column, C columns, K candidates.

from collections.abc import Sequence

import numpy as np

from llm_engine.sampler.arrays import Doubles, Floats, Ints, columns_of, exp_in_place
from llm_engine.sampler.candidates import Candidates, by_mass, by_top_k
from llm_engine.sampler.rows import SamplerRow

_LEAST_TEMPERATURE = 1e-30  # below it float32 has no reciprocal
_ROWS_AT_ONCE = 8  # more would leave the cache between one pass and the next
_LARGEST_SHARE = 1 - 2.0**-53


def draw(logits_RV: Floats, largest_R: Floats, rows: Sequence[SamplerRow]) -> Ints:
    """Token ids (R,). Shapes: logits (R, V) with the finite maxima (R,)."""
    parts = [slice(i, i + _ROWS_AT_ONCE) for i in range(0, len(rows), _ROWS_AT_ONCE)]
    return np.concatenate([_draw(logits_RV[p], largest_R[p], rows[p]) for p in parts])


def _draw(logits_RV: Floats, largest_R: Floats, rows: Sequence[SamplerRow]) -> Ints:
    scaled_RGC, scaled_RV = columns_of(*logits_RV.shape)
    temperatures = [max(row.params.temperature, _LEAST_TEMPERATURE) for row in rows]
    np.subtract(logits_RV, largest_R[:, None], out=scaled_RV)
    with np.errstate(over="ignore"):
        scaled_RV /= np.array(temperatures, dtype=np.float32)[:, None]
    kinds = [_kind(row, scaled_RGC.shape[2]) for row in rows]
    tokens_R = np.empty(len(rows), dtype=np.int64)
    for kind, pick in enumerate((_pick_of_all, _pick_of_top_k, _pick_of_mass)):
        chosen = [i for i, other in enumerate(kinds) if other == kind]
        if chosen:
            is_all = len(chosen) == len(rows)
            values_RGC = scaled_RGC if is_all else scaled_RGC[chosen]
            tokens_R[chosen] = pick(values_RGC, [rows[i] for i in chosen])
    return tokens_R


def _kind(row: SamplerRow, num_columns: int) -> int:
    params = row.params
    if 0 < params.top_k <= num_columns:
        return 1
    return 2 if params.top_k or params.top_p < 1.0 or params.min_p > 0.0 else 0


def _pick_of_all(values_RGC: Floats, rows: Sequence[SamplerRow]) -> Ints:
    """Tokens of rows that keep every one; `values` is overwritten."""
    exp_in_place(values_RGC)
    mass_RC = values_RGC.sum(axis=1)
    cumulated_RC = mass_RC.cumsum(axis=-1, dtype=np.float64)
    targets_R = _uniforms(rows) * cumulated_RC[:, -1]
    columns_R = (cumulated_RC <= targets_R[:, None]).sum(axis=-1)
    index_R = np.arange(len(rows))
    mass_R = mass_RC[index_R, columns_R].astype(np.float64)
    share_R = (targets_R - (cumulated_RC[index_R, columns_R] - mass_R)) / mass_R
    entries_RG = values_RGC[index_R, :, columns_R].cumsum(axis=-1, dtype=np.float64)
    inner_R = share_R.clip(0.0, _LARGEST_SHARE) * entries_RG[:, -1]
    return (entries_RG <= inner_R[:, None]).sum(axis=-1) * values_RGC.shape[2] + columns_R


def _pick_of_top_k(values_RGC: Floats, rows: Sequence[SamplerRow]) -> Ints:
    candidates = by_top_k(values_RGC, [row.params.top_k for row in rows])
    return _pick_of_candidates(values_RGC, candidates, rows)


def _pick_of_mass(values_RGC: Floats, rows: Sequence[SamplerRow]) -> Ints:
    candidates = by_mass(values_RGC, [row.params for row in rows])
    return _pick_of_candidates(values_RGC, candidates, rows)


def _pick_of_candidates(
    values_RGC: Floats, candidates: Candidates, rows: Sequence[SamplerRow]
) -> Ints:
    """A candidate by its mass, then the token that has its value."""
    kept_RK = candidates.kept(
        top_p_R=np.array([row.params.top_p for row in rows]),
        min_p_R=np.array([row.params.min_p for row in rows]),
    )
    cumulated_RK = kept_RK.cumsum(axis=-1)
    targets_R = _uniforms(rows) * cumulated_RK[:, -1]
    ranks_R = (cumulated_RK <= targets_R[:, None]).sum(axis=-1)
    sorted_RK = candidates.sorted_RK
    drawn_R = sorted_RK[np.arange(len(rows)), ranks_R]
    ties_R = ranks_R - (sorted_RK > drawn_R[:, None]).sum(axis=-1)
    is_drawn_RP = values_RGC.reshape(len(rows), -1) == drawn_R[:, None]
    tokens_R = is_drawn_RP.argmax(axis=-1)
    for i in np.flatnonzero(ties_R):
        tokens_R[i] = np.flatnonzero(is_drawn_RP[i])[ties_R[i]]
    return tokens_R


def _uniforms(rows: Sequence[SamplerRow]) -> Doubles:
    return np.array([row.uniform for row in rows], dtype=np.float64)
