"""How much of a text's tail may still become a marker."""

from collections.abc import Iterable


def num_held(text: str, markers: Iterable[str]) -> int:
    """Length of the longest tail that is the beginning, and not the whole, of some marker."""
    return max((_overlap(text, marker) for marker in markers), default=0)


def _overlap(text: str, marker: str) -> int:
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
