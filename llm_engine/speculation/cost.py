"""What a row more costs a step, as measured on the steps of this engine."""

from collections.abc import Sequence

_FORGETTING = 0.99
_PRIOR_SHARE = 0.05  # of a step's time, for a row more, where nothing was measured
_PRIOR_WEIGHT = 0.5  # in units of observations one row apart
_OUTLIER = 2.0


class StepCost:
    """Seconds of a step over its rows: a line through recent steps, older ones fading out.

    Where recent steps had all the same number of rows, the slope falls back to a small share of
    the step, so that drafting is tried again and measured anew.
    """

    def __init__(self) -> None:
        """Nothing is measured."""
        self._weight = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._rows_rows = 0.0
        self._rows_seconds = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether any step was observed."""
        return self._weight > 0.0

    def observe(self, num_rows: int, seconds: float) -> None:
        """Add one step; a step held up by something else counts as twice its usual time."""
        if self.is_measured:
            seconds = min(seconds, _OUTLIER * self.seconds(num_rows))
        self._weight = _FORGETTING * self._weight + 1.0
        self._rows = _FORGETTING * self._rows + num_rows
        self._seconds = _FORGETTING * self._seconds + seconds
        self._rows_rows = _FORGETTING * self._rows_rows + num_rows * num_rows
        self._rows_seconds = _FORGETTING * self._rows_seconds + num_rows * seconds

    def seconds(self, num_rows: int) -> float:
        """Expected time of a step; a row never costs more than its share of the mean step."""
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = max(0.0, self._rows_rows - mean_rows * self._rows)
        covariance = self._rows_seconds - mean_rows * self._seconds
        prior = _PRIOR_SHARE * mean_seconds
        slope = (covariance + _PRIOR_WEIGHT * prior) / (spread + _PRIOR_WEIGHT)
        slope = min(max(slope, 0.0), mean_seconds / max(mean_rows, 1.0))
        return mean_seconds + slope * (num_rows - mean_rows)


def best_lengths(
    acceptances: Sequence[float], limits: Sequence[int], num_rows: int, cost: StepCost
) -> list[int]:
    """How many tokens to draft for each sequence, so that a step yields most tokens a second.

    `num_rows` rows run in any case. A sequence whose guesses are right with probability a gains
    a + a² + … + a^k tokens by k guesses and costs k rows. Sequences are taken in order, each given
    what those before it chose.
    """
    lengths: list[int] = []
    num_tokens, rows = float(num_rows), num_rows
    for acceptance, limit in zip(acceptances, limits, strict=True):
        best, best_rate = (0, 0.0), num_tokens / cost.seconds(rows)
        gained = 0.0
        for length in range(1, limit + 1):
            gained += acceptance**length
            rate = (num_tokens + gained) / cost.seconds(rows + length)
            if rate > best_rate:
                best, best_rate = (length, gained), rate
        lengths.append(best[0])
        rows += best[0]
        num_tokens += best[1]
    return lengths
