"""How much of a text's tail may still become a marker."""

from collections.abc import Iterable

# Fewer characters may begin anything: "<t" a table, "[TO" a list of things to do.
_SURE_CHARS = 4


def num_held(text: str, markers: Iterable[str]) -> int:
    """Length of the longest tail that is the beginning, and not the whole, of some marker."""
    return max((_overlap(text, marker) for marker in markers), default=0)


def num_surely_begun(text: str, markers: Iterable[str]) -> int:
    """As `num_held`, for a text that was cut short; 0 where the tail is too short to tell."""
    num_chars = num_held(text, markers)
    return num_chars if num_chars >= _SURE_CHARS else 0


def _overlap(text: str, marker: str) -> int:
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
