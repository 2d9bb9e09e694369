"""How long a step takes, fitted to the steps that were measured, and the chunk that is affordable.

t = a + p [has a prompt chunk] + b prompt tokens + c answering rows + d attended tokens, every
coefficient >= 0, fitted by least squares over exponentially weighted steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_FORGETTING = 0.98
_RIDGE = 1e-9
_FEATURES = 5
_TRUSTED_STEPS = 8  # before that a fit says little
_FIRST_CHUNK_TOKENS = 32  # as far as a model is trusted that has seen no prompt yet


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's duration depends on.

    `attended_tokens` sums, over all rows of the step, the cached tokens that the row sees.
    """

    prompt_tokens: int
    answer_rows: int
    attended_tokens: int

    @property
    def features(self) -> tuple[float, ...]:
        """The terms of the model, in its order."""
        has_prompt = float(self.prompt_tokens > 0)
        rows = (1.0, has_prompt, self.prompt_tokens, self.answer_rows, self.attended_tokens)
        return tuple(float(value) for value in rows)


class StepTimeModel:
    """Step times in seconds. Observing costs a few multiplications; fitting waits for a question.

    Beyond twice the largest prompt chunk seen the model is not trusted, so a chunk grows by
    doubling at most.
    """

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._products = [[0.0] * _FEATURES for _ in range(_FEATURES)]
        self._targets = [0.0] * _FEATURES
        self._coefficients: tuple[float, ...] | None = None
        self._largest_chunk = 0
        self._num_observed = 0

    @property
    def num_observed(self) -> int:
        """Steps seen so far."""
        return self._num_observed

    def observe(self, shape: StepShape, duration_s: float) -> None:
        """Learn from a measured step."""
        features = shape.features
        for i, value in enumerate(features):
            row = self._products[i]
            for j, other in enumerate(features):
                row[j] = _FORGETTING * row[j] + value * other
            self._targets[i] = _FORGETTING * self._targets[i] + value * duration_s
        self._largest_chunk = max(self._largest_chunk, shape.prompt_tokens)
        self._num_observed += 1
        self._coefficients = None

    def predict_s(self, shape: StepShape) -> float:
        """The time a step is expected to take."""
        fitted = zip(self.coefficients, shape.features, strict=True)
        return sum(coefficient * value for coefficient, value in fitted)

    def trusted_s(self, shape: StepShape) -> float | None:
        """`predict_s` where enough like it was measured, else None."""
        is_known = shape.prompt_tokens <= 2 * self._largest_chunk
        return self.predict_s(shape) if is_known and self._num_observed >= _TRUSTED_STEPS else None

    def prompt_s(self, start: int, num_tokens: int, *, is_first: bool = True) -> float:
        """What a prompt chunk adds to a step; `is_first` unless another chunk is there already."""
        _, per_chunk, per_token, _, per_attended = self.coefficients
        attended = num_tokens * start + num_tokens * (num_tokens + 1) / 2
        return per_chunk * is_first + per_token * num_tokens + per_attended * attended

    def largest_chunk(self, bound_s: float, start: int, *, most: int, is_first: bool = True) -> int:
        """The most prompt tokens, from position `start`, that add at most `bound_s`. 0: none do."""
        trusted = max(_FIRST_CHUNK_TOKENS, 2 * self._largest_chunk)
        low, high = 0, min(most, trusted)
        while low < high:
            middle = (low + high + 1) // 2
            if self.prompt_s(start, middle, is_first=is_first) <= bound_s:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds for each term; all zero before the first step."""
        if self._coefficients is None:
            self._coefficients = _solve_nonnegative(self._products, self._targets)
        return self._coefficients


def _solve_nonnegative(
    products: Sequence[Sequence[float]], targets: Sequence[float]
) -> tuple[float, ...]:
    """Least squares from its normal equations; negative terms are left out, worst first."""
    kept = [i for i in range(len(targets)) if products[i][i] > 0.0]
    while kept:
        solution = _solve(
            [[products[i][j] for j in kept] for i in kept], [targets[i] for i in kept]
        )
        worst = min(range(len(kept)), key=lambda i: solution[i])
        if solution[worst] >= 0.0:
            result = [0.0] * len(targets)
            for index, value in zip(kept, solution, strict=True):
                result[index] = value
            return tuple(result)
        del kept[worst]
    return (0.0,) * len(targets)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination of a symmetric positive system, scaled and slightly regularised."""
    size = len(right)
    scale = [max(matrix[i][i], 1e-300) ** -0.5 for i in range(size)]
    rows = [
        [matrix[i][j] * scale[i] * scale[j] + (_RIDGE if i == j else 0.0) for j in range(size)]
        + [right[i] * scale[i]]
        for i in range(size)
    ]
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return [value * factor for value, factor in zip(solution, scale, strict=True)]
