"""Which page of one group is free, in use, kept for reuse, or taken out of service."""

from collections.abc import Iterable


class PagePool:
    """Pages 0 .. num_pages-1 of one group.

    A page has users (sequences that read or write it) and may be cached (the prefix tree keeps
    it). Invariants: free + used + cached + retired = num_pages; used pages have a user; cached
    ones have none but are kept; a page without either is free or retired.
    """

    def __init__(self, num_pages: int, num_usable: int | None = None) -> None:
        """Start with `num_usable` free pages; the others are retired until `resize`."""
        assert num_pages > 0
        self.num_pages = num_pages
        self._users = [0] * num_pages
        self._is_cached = bytearray(num_pages)
        self._num_used = 0
        self._num_cached = 0
        usable = num_pages if num_usable is None else num_usable
        # Stacks: pages given back last are taken first, so few pages of memory are touched.
        self._free = list(range(usable - 1, -1, -1))
        self._retired = list(range(num_pages - 1, usable - 1, -1))

    @property
    def num_free(self) -> int:
        """Pages that `take` can give."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages with a user."""
        return self._num_used

    @property
    def num_cached(self) -> int:
        """Pages without a user that are kept for reuse."""
        return self._num_cached

    @property
    def num_usable(self) -> int:
        """Pages in service."""
        return self.num_pages - len(self._retired)

    def num_users(self, page: int) -> int:
        """How many sequences use a page."""
        return self._users[page]

    def is_cached(self, page: int) -> bool:
        """Whether the tree keeps a page."""
        return bool(self._is_cached[page])

    def free_pages(self) -> list[int]:
        """The free pages, as a copy."""
        return list(self._free)

    def take(self, num_pages: int) -> list[int]:
        """Free pages for one user; there must be enough."""
        assert num_pages <= len(self._free), "take without enough free pages"
        pages = [self._free.pop() for _ in range(num_pages)]
        for page in pages:
            self._users[page] = 1
        self._num_used += num_pages
        return pages

    def use(self, page: int) -> None:
        """One more user of a page in use or cached."""
        if not self._users[page]:
            assert self._is_cached[page], f"page {page} is free"
            self._num_cached -= 1
            self._num_used += 1
        self._users[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One user less for each page; those that nobody uses or keeps become free."""
        freed: list[int] = []
        for page in pages:
            assert self._users[page] > 0, f"page {page} has no user"
            self._users[page] -= 1
            if not self._users[page]:
                self._num_used -= 1
                if self._is_cached[page]:
                    self._num_cached += 1
                else:
                    freed.append(page)
        self._free.extend(reversed(freed))

    def keep(self, page: int) -> None:
        """Mark a page in use as cached, so that it outlives its users."""
        assert self._users[page], f"page {page} has no user"
        assert not self._is_cached[page], f"page {page} is cached already"
        self._is_cached[page] = 1

    def forget(self, page: int) -> None:
        """Keep a page no longer; without a user it becomes free."""
        assert self._is_cached[page], f"page {page} is not cached"
        self._is_cached[page] = 0
        if not self._users[page]:
            self._num_cached -= 1
            self._free.append(page)

    def resize(self, num_usable: int) -> list[int]:
        """Bring pages into service, or take free ones out as far as there are any.

        Returns the pages taken out: their contents are worth nothing.
        """
        while self.num_usable < min(num_usable, self.num_pages):
            self._free.append(self._retired.pop())
        count = max(0, min(self.num_usable - num_usable, len(self._free)))
        taken = self._free[:count]
        del self._free[:count]
        self._retired.extend(taken)
        return taken

    def check_integrity(self) -> None:
        """Verify the invariants. Raises: AssertionError naming what is lost or counted twice."""
        idle = [*self._free, *self._retired]
        assert len(set(idle)) == len(idle), "a page is free twice"
        for page in idle:
            assert not self._users[page], f"page {page} is free but used"
            assert not self._is_cached[page], f"page {page} is free but cached"
        used = sum(1 for users in self._users if users)
        cached = sum(
            1 for page in range(self.num_pages) if self._is_cached[page] and not self._users[page]
        )
        assert used == self._num_used, f"{used} pages used, {self._num_used} counted"
        assert cached == self._num_cached, f"{cached} pages cached, {self._num_cached} counted"
        total = used + cached + len(idle)
        assert total == self.num_pages, f"{self.num_pages - total} pages lost"
