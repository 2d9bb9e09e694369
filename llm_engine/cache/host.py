"""Host memory below the device's pages: evicted blocks, and sequences that had to make room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.node import Node
from llm_engine.cache.storage import NoStorage, PageStorage


@dataclass(slots=True)
class _Entry:
    """Contents by group; `owner` is the evicted block, None for a sequence's own pages."""

    contents: dict[int, Any]
    size_bytes: int
    owner: Node | None


class HostTier:
    """Copies of pages under tickets, at most `capacity_bytes` of them.

    Blocks make room for newer ones, oldest first; a sequence's own pages stay until they are
    fetched or dropped. Invariant: the sizes add up to `used_bytes` <= `capacity_bytes`.
    """

    def __init__(self, layout: CacheLayout, capacity_bytes: int) -> None:
        """Start empty, with no storage attached."""
        self.storage: PageStorage = NoStorage()
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.out_bytes_total = 0
        self.in_bytes_total = 0
        self.num_dropped_blocks = 0
        self.remove_block: Callable[[Node], None] | None = None
        self._layout = layout
        self._entries: dict[int, _Entry] = {}
        self._tickets = count()

    def groups(self, ticket: int) -> frozenset[int]:
        """The groups that an entry has contents of."""
        return frozenset(self._entries[ticket].contents)

    def save(self, pages: Sequence[Sequence[int] | None], owner: Node | None) -> int | None:
        """Copy pages, by group, out of the device. Returns a ticket, or None without room."""
        size_bytes = sum(
            len(each) * group.page_bytes
            for each, group in zip(pages, self._layout.groups, strict=True)
            if each
        )
        if not self._make_room(size_bytes):
            return None
        contents = {
            group: self.storage.copy_out(group, each) for group, each in enumerate(pages) if each
        }
        ticket = next(self._tickets)
        self._entries[ticket] = _Entry(contents, size_bytes, owner)
        self.used_bytes += size_bytes
        self.out_bytes_total += size_bytes
        return ticket

    def load(self, ticket: int, group: int, pages: Sequence[int]) -> None:
        """Copy a group's contents into as many device pages; the entry stays."""
        self.storage.copy_in(group, pages, self._entries[ticket].contents[group])
        self.in_bytes_total += len(pages) * self._layout.groups[group].page_bytes

    def drop(self, ticket: int) -> None:
        """Forget an entry."""
        self.used_bytes -= self._entries.pop(ticket).size_bytes

    def resize(self, capacity_bytes: int) -> None:
        """Change the bound; blocks beyond it are dropped, sequences' own pages are not."""
        self.capacity_bytes = capacity_bytes
        self._make_room(0)

    def check_integrity(self) -> None:
        """Verify the invariants. Raises: AssertionError."""
        total = sum(entry.size_bytes for entry in self._entries.values())
        assert total == self.used_bytes, f"host tier holds {total}, counts {self.used_bytes} bytes"
        for ticket, entry in self._entries.items():
            if entry.owner is not None:
                assert entry.owner.host == ticket, "a host entry's block does not know it"
                assert not entry.owner.is_on_device, "a block is on the device and in the host tier"

    def _make_room(self, size_bytes: int) -> bool:
        if size_bytes > self.capacity_bytes:
            return False
        while self.used_bytes + size_bytes > self.capacity_bytes:
            oldest = next((e.owner for e in self._entries.values() if _is_droppable(e)), None)
            if oldest is None:
                return False
            assert self.remove_block is not None
            self.num_dropped_blocks += 1
            self.remove_block(oldest)
        return True


def _is_droppable(entry: _Entry) -> bool:
    return entry.owner is not None and not entry.owner.users
