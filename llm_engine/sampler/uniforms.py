"""The random numbers of one choice: a function of seed, choice and position."""

import numpy as np
import numpy.typing as npt

from kernels.ops.sampler.philox import KEY_STEPS, LOW, MULTIPLIERS, NUM_ROUNDS
from llm_engine.sampler.arrays import Ints

_NUM_KEPT = 32  # positions computed at once; a speed matter only
_SEED_MASK = (1 << 64) - 1
_UNIT = 2.0**-53
_KEY_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: keys of choices lie far apart
_MULTIPLIERS_21 = np.array(MULTIPLIERS, dtype=np.uint64)[:, None]


class PositionUniforms:
    """Two uniform numbers in [0, 1) for each position of an answer, with 53 bits each.

    Philox4x32-10 with the seed's 64 bits as key and (position, choice, 0, 0) as counter: the
    first two words make the number that draws a token, the others the one that accepts a draft.
    Source: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """

    def __init__(self, seed: int, choice_index: int) -> None:
        """Choices and seeds get unrelated numbers."""
        self._seed = seed & _SEED_MASK
        self._choice_index = choice_index
        self._first = 0
        self._kept: tuple[list[float], list[float]] = ([], [])

    @property
    def device_seed(self) -> int:
        """The choice's own key where a device draws, 64 bits with a sign."""
        key = (self._seed + self._choice_index * _KEY_STEP) & _SEED_MASK
        return key - (1 << 64) if key >> 63 else key

    def drawing(self, position: int) -> float:
        """The number that draws the token at a position of the answer, counted from 0."""
        return self._at(position)[0]

    def accepting(self, position: int) -> float:
        """The number that accepts or refuses a random draft at a position."""
        return self._at(position)[1]

    def _at(self, position: int) -> tuple[float, float]:
        if not 0 <= position - self._first < len(self._kept[0]):
            self._compute(position)
        index = position - self._first
        return self._kept[0][index], self._kept[1][index]

    def _compute(self, first: int) -> None:
        words_4N = _philox(np.arange(first, first + _NUM_KEPT), self._choice_index, self._seed)
        numbers_2N = ((words_4N[::2] << 21) | (words_4N[1::2] >> 11)) * _UNIT
        self._kept = numbers_2N[0].tolist(), numbers_2N[1].tolist()
        self._first = first


def _philox(positions_N: Ints, choice_index: int, seed: int) -> npt.NDArray[np.uint64]:
    """Four words of 32 random bits for each counter (position, choice, 0, 0), (4, N).

    As `kernels.ops.sampler.philox`, at a fraction of its cost for so few numbers.
    """
    even_2N = np.zeros((2, len(positions_N)), dtype=np.uint64)
    odd_2N = np.zeros_like(even_2N)
    even_2N[0], odd_2N[0] = positions_N, choice_index
    for i in range(NUM_ROUNDS):
        keys = [[(seed + i * KEY_STEPS[0]) & LOW], [((seed >> 32) + i * KEY_STEPS[1]) & LOW]]
        product_2N = even_2N * _MULTIPLIERS_21
        even_2N = (product_2N >> 32)[::-1] ^ odd_2N ^ np.array(keys, dtype=np.uint64)
        odd_2N = (product_2N & LOW)[::-1]
    return np.stack((even_2N, odd_2N), axis=1).reshape(4, -1).astype(np.uint64, copy=False)
