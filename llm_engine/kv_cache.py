"""Which sequence owns which page of the key/value cache. Plain bookkeeping, no tensors."""

from collections import deque
from collections.abc import Sequence


class PagePool:
    """Pages 0 .. num_pages-1, each free or owned by exactly one sequence.

    Invariants: free + used = total; no page has two owners; a table never holds a page twice.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Start with every page free. Units: `page_size` in tokens."""
        assert num_pages > 0
        assert page_size > 0
        self.num_pages = num_pages
        self.page_size = page_size
        self._free: deque[int] = deque(range(num_pages))
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """How many pages nobody owns."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """How many pages are owned."""
        return sum(len(table) for table in self._tables.values())

    def table(self, seq_id: int) -> Sequence[int]:
        """The pages of a sequence in token order; empty for an unknown sequence."""
        return self._tables.get(seq_id, ())

    def num_missing(self, seq_id: int, num_tokens: int) -> int:
        """How many more pages the sequence needs to hold `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.page_size) - len(self._tables.get(seq_id, ())))

    def can_grow(self, seq_id: int, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self.num_missing(seq_id, num_tokens) <= len(self._free)

    def grow(self, seq_id: int, num_tokens: int) -> None:
        """Give the sequence pages for `num_tokens` tokens in all; `can_grow` must hold."""
        num_pages = self.num_missing(seq_id, num_tokens)
        assert num_pages <= len(self._free), "grow without can_grow"
        table = self._tables.setdefault(seq_id, [])
        table.extend(self._free.popleft() for _ in range(num_pages))

    def release(self, seq_id: int) -> None:
        """Take back every page of a sequence; an unknown sequence owns none."""
        self._free.extend(self._tables.pop(seq_id, ()))

    def check_integrity(self) -> None:
        """Verify the invariants.

        Raises: AssertionError naming the pages that are lost or owned twice.
        """
        owned = [page for table in self._tables.values() for page in table]
        every = sorted([*owned, *self._free])
        if every != list(range(self.num_pages)):
            twice = sorted({page for page in every if every.count(page) > 1})
            lost = sorted(set(range(self.num_pages)) - set(every))
            raise AssertionError(f"page pool broken: owned twice {twice}, lost {lost}")
