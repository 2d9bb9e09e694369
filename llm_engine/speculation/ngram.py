"""Prompt look-up: what followed the last time the text ended as it ends now."""

from collections.abc import Sequence

_LONGEST = 5
_SHORTEST = 2
_FIRST_ACCEPTANCE = 0.5
_LEARNING_RATE = 0.1


class NgramDrafter:
    """Continues a sequence as it went on after the latest occurrence of its longest known suffix.

    Suffixes of 2 to 5 tokens are known by an index from n-gram to what follows it, which grows
    with the sequence: a token costs four entries, whatever the length of the text. Acceptance is
    learned by the suffix's length, as long ones are right more often.

    Cost: O(1) in time and memory for each token of the sequence.
    Source: Saxena 2023, "Prompt lookup decoding".
    """

    def __init__(self) -> None:
        """Know nothing."""
        self._follows: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._matched = _SHORTEST
        self._acceptance = dict.fromkeys(range(_SHORTEST, _LONGEST + 1), _FIRST_ACCEPTANCE)

    @property
    def acceptance(self) -> float:
        """Share of guesses that were right after a suffix as long as the last one matched."""
        return self._acceptance[self._matched]

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Guesses from the longest suffix that occurred before; a repetition goes on repeating."""
        self._index(token_ids)
        num_known = len(token_ids)
        for size in range(min(_LONGEST, num_known - 1), _SHORTEST - 1, -1):
            start = self._follows.get(tuple(token_ids[num_known - size :]))
            if start is not None:
                self._matched = size
                period = num_known - start
                return tuple(token_ids[start + i % period] for i in range(max_tokens))
        return ()

    def observe(self, num_accepted: int, num_proposed: int) -> None:
        """Each guess tried is one trial; those after the first wrong one were not tried."""
        rate = self._acceptance[self._matched]
        for _ in range(num_accepted):
            rate += _LEARNING_RATE * (1.0 - rate)
        if num_accepted < num_proposed:
            rate -= _LEARNING_RATE * rate
        self._acceptance[self._matched] = rate

    def _index(self, token_ids: Sequence[int]) -> None:
        """Note what followed each n-gram; one that ends the text has no follower yet."""
        for position in range(max(self._num_indexed, _SHORTEST), len(token_ids)):
            window = tuple(token_ids[max(0, position - _LONGEST) : position])
            for size in range(_SHORTEST, len(window) + 1):
                self._follows[window[-size:]] = position
        self._num_indexed = len(token_ids)
