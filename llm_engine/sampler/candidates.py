"""The tokens that top_k, top_p and min_p may keep, in falling order."""

# R rows, G tokens of a column, C columns, K candidates.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_engine.sampler.arrays import COLUMN_TOKENS, Doubles, Floats, exp_in_place
from llm_engine.types import SamplingParams

_FEW_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Candidates:
    """Logits over temperature, the largest of a row 0, in falling order; -inf fills up a row.

    `totals` are the masses that top_p is a share of.
    """

    sorted_RK: Floats
    mass_RK: Doubles
    totals_R: Doubles

    def kept(self, top_p_R: Doubles, min_p_R: Doubles) -> Doubles:
        """Masses (R, K), 0 where top_p or min_p cut: the likeliest token always stays.

        top_p keeps tokens above which lies less than its share of the mass; min_p those with at
        least its share of the likeliest token's.
        Source: Holtzman et al. 2019, arXiv:1904.09751; Nguyen et al. 2024, arXiv:2407.01082.
        """
        above_RK = self.mass_RK.cumsum(axis=-1) - self.mass_RK
        is_cut_RK = above_RK >= (top_p_R * self.totals_R)[:, None]
        is_cut_RK &= top_p_R[:, None] < 1.0
        is_cut_RK |= self.mass_RK < min_p_R[:, None]
        is_cut_RK[:, 0] = False
        return np.where(is_cut_RK, 0.0, self.mass_RK)


def by_top_k(values_RGC: Floats, top_k: Sequence[int]) -> Candidates:
    """The `top_k` largest of each row, at most as many as there are columns.

    The k largest entries lie in the k columns with the largest maxima.
    """
    num_rows, _, num_columns = values_RGC.shape
    most = max(top_k)
    maxima_RC = values_RGC.max(axis=1)
    columns_RK = np.argpartition(maxima_RC, num_columns - most)[:, num_columns - most :]
    entries_RN = np.take_along_axis(values_RGC, columns_RK[:, None], axis=2).reshape(num_rows, -1)
    first = entries_RN.shape[1] - most
    sorted_RK = np.sort(np.partition(entries_RN, first)[:, first:])[:, ::-1]
    mass_RK = np.exp(sorted_RK, dtype=np.float64)
    mass_RK[np.arange(most) >= np.array(top_k)[:, None]] = 0.0
    return Candidates(sorted_RK, mass_RK, mass_RK.cumsum(axis=-1)[:, -1])


def by_mass(values_RGC: Floats, params: Sequence[SamplingParams]) -> Candidates:
    """Those of each row that top_p and min_p can reach, or the `top_k` largest of all."""
    num_rows = len(params)
    mass_P = np.empty(values_RGC[0].size, dtype=np.float32)  # one for all rows: it stays in cache
    found = [_row_by_mass(values_RGC[i].reshape(-1), params[i], mass_P) for i in range(num_rows)]
    sorted_RK = np.full((num_rows, max(len(row) for row, _ in found)), -np.inf, dtype=np.float32)
    for i, (row, _) in enumerate(found):
        sorted_RK[i, : len(row)] = row
    totals_R = np.array([total for _, total in found])
    return Candidates(sorted_RK, np.exp(sorted_RK, dtype=np.float64), totals_R)


def _row_by_mass(values_P: Floats, params: SamplingParams, mass_P: Floats) -> tuple[Floats, float]:
    """Candidates of a row in falling order, and the mass that top_p is a share of."""
    if params.top_k:
        kept = np.sort(values_P)[::-1][: params.top_k]
        return kept, float(np.exp(kept, dtype=np.float64).cumsum()[-1])
    if params.top_p >= 1.0:
        return _falling_from(values_P, _floor_of(params.min_p)), 1.0
    np.copyto(mass_P, values_P)
    exp_in_place(mass_P)
    total = float(mass_P.reshape(COLUMN_TOKENS, -1).sum(axis=0).sum(dtype=np.float64))
    # Few tokens make up most nuclei; those that could not enter it even together never do.
    least = 0.5 * (1.0 - params.top_p) * total / len(values_P)
    for floor in (_floor_of_few(values_P), _floor_of(max(least, params.min_p))):
        candidates = _falling_from(values_P, floor)
        cumulated = np.exp(candidates, dtype=np.float64).cumsum()
        if cumulated[-1] >= params.top_p * total:
            break
    size = int(np.searchsorted(cumulated, params.top_p * total)) + 1
    return candidates[:size], total


def _floor_of_few(values_P: Floats) -> np.float32:
    """A value that some dozens of tokens reach: as many columns do by their maxima."""
    maxima_C = values_P.reshape(COLUMN_TOKENS, -1).max(axis=0)
    first = max(0, len(maxima_C) - _FEW_COLUMNS)
    return np.partition(maxima_C, first)[first]


def _floor_of(least_mass: float) -> np.float32:
    """The value of a token with about this mass, and rather a little less."""
    return np.float32(np.log(least_mass) - 1e-4)


def _falling_from(values_P: Floats, floor: np.float32) -> Floats:
    """Values from `floor` on, in falling order."""
    # Indexing by a mask is several times slower where few tokens are taken.
    return np.sort(values_P[np.flatnonzero(values_P >= floor)])[::-1]
