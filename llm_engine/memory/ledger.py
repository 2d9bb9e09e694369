"""Where the memory goes: every part with its size, and where the size comes from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

MemorySource = Literal["measured", "formula", "setting"]


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One part. Units: bytes."""

    name: str
    size_bytes: int
    source: MemorySource
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Everything but the cache of keys and values: what is left is for that."""

    entries: tuple[MemoryEntry, ...]

    @classmethod
    def of(cls, entries: Iterable[MemoryEntry]) -> Self:
        """A ledger of these parts."""
        return cls(tuple(entries))

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(entry.size_bytes for entry in self.entries)

    def measured(self, name: str, size_bytes: int) -> Self:
        """The ledger with a part's size measured instead of computed."""
        return replace(
            self,
            entries=tuple(
                replace(entry, size_bytes=size_bytes, source="measured")
                if entry.name == name
                else entry
                for entry in self.entries
            ),
        )

    def size_bytes(self, name: str) -> int:
        """The size of a part; 0 for one that is not there."""
        return sum(entry.size_bytes for entry in self.entries if entry.name == name)
