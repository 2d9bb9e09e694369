"""What the cache's bookkeeping asks of the memory behind the pages."""

from collections.abc import Sequence
from typing import Any, Protocol


class PageStorage(Protocol):
    """The pages' contents, by group. Calls take effect before the next step is computed."""

    def copy_out(self, group: int, pages: Sequence[int]) -> Sequence[Any]:
        """The contents of pages, in memory of their own, one item for each layer."""
        ...

    def copy_in(self, group: int, pages: Sequence[int], contents: Sequence[Any]) -> None:
        """Write what `copy_out` returned for as many pages."""
        ...

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one page onto another of the same group."""
        ...

    def give_back(self, group: int, pages: Sequence[int]) -> None:
        """The contents are worth nothing: their memory may return to the system."""
        ...


class NoStorage:
    """Bookkeeping alone: pages have no contents, so nothing can leave the device."""

    def copy_out(self, group: int, pages: Sequence[int]) -> Sequence[Any]:
        """Raises: AssertionError, since there is nothing to copy."""
        raise AssertionError("these pages have no contents")

    def copy_in(self, group: int, pages: Sequence[int], contents: Sequence[Any]) -> None:
        """Raises: AssertionError, since there is nowhere to copy to."""
        raise AssertionError("these pages have no contents")

    def copy(self, group: int, source: int, target: int) -> None:
        """Nothing to copy."""

    def give_back(self, group: int, pages: Sequence[int]) -> None:
        """Nothing to give back."""
