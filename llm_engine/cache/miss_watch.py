"""Notices when requests that begin alike keep missing the cache."""

from array import array
from collections import deque
from collections.abc import Sequence

RECENT_PROMPTS = 16
COMPARED_TOKENS = 4096
COMMON_TOKENS = 32
WARN_AFTER_MISSES = 16


class MissWatch:
    """The beginnings of the last prompts, and how many in a row missed though one was alike.

    "Alike" is a common beginning of at least `COMMON_TOKENS` tokens.
    """

    def __init__(self, warn_after: int = WARN_AFTER_MISSES) -> None:
        """Start with none. `warn_after` misses in a row are worth a warning."""
        self.num_in_row = 0
        self._warn_after = warn_after
        self._recent: deque[array[int]] = deque(maxlen=RECENT_PROMPTS)

    def longest_common(self, prompt_ids: Sequence[int]) -> int:
        """The longest common beginning with a recent prompt, in tokens; then remember this one."""
        ids = array("I", prompt_ids[:COMPARED_TOKENS])
        longest = 0
        for other in self._recent:
            if ids[: longest + 1] == other[: longest + 1]:
                longest = max(longest, _common(ids, other))
        self._recent.append(ids)
        return longest

    def hit(self) -> None:
        """A request was served from the cache."""
        self.num_in_row = 0

    def miss(self, num_common_tokens: int) -> bool:
        """A request was not; true when a warning is due, once for every `warn_after` of them."""
        if num_common_tokens < COMMON_TOKENS:
            return False
        self.num_in_row += 1
        return self.num_in_row % self._warn_after == 0


def _common(one: "array[int]", other: "array[int]") -> int:
    """Halving finds the first difference; comparing slices costs far less than a loop."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
