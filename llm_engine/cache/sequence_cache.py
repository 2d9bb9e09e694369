"""What the scheduler asks of a cache: pages for sequences, in one memory or in several."""

from collections.abc import Sequence
from typing import Protocol

from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.kv_cache import Admission, KVCache
from llm_engine.sequence import Sequence as ScheduledSequence


class SequenceCache(Protocol):
    """See `llm_engine.cache.kv_cache.KVCache`, which is one part alone."""

    layout: CacheLayout

    @property
    def parts(self) -> Sequence[KVCache]:
        """The memories, each with pages and prefixes of its own."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of the first group in each part, those out of service included."""
        ...

    @property
    def pages_by_group(self) -> Sequence[int]:
        """Pages of each group in each part, those out of service included."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens of a page of the first group."""
        ...

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that can be held."""
        ...

    def part_of(self, seq_id: int) -> int:
        """In which part a sequence's pages are; 0 for an unknown sequence."""
        ...

    def table(self, seq_id: int, group: int = 0) -> Sequence[int]:
        """The pages of a sequence in token order; empty for an unknown sequence."""
        ...

    def admit(self, seq: ScheduledSequence) -> Admission:
        """Give a sequence pages for its known tokens and whatever prefix there is."""
        ...

    def can_grow(self, seq_id: int, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        ...

    def grow(self, seq_id: int, num_tokens: int) -> None:
        """Give a running sequence pages for `num_tokens` tokens; `can_grow` must hold."""
        ...

    def num_available(self, group: int) -> int:
        """Pages that can be had in all parts together."""
        ...

    def commit(self, seq: ScheduledSequence) -> None:
        """Take in what was computed."""
        ...

    def release(self, seq: ScheduledSequence) -> None:
        """Take back everything of a sequence; an unknown one holds nothing."""
        ...

    def swap_out(self, seq: ScheduledSequence) -> bool:
        """Copy a sequence's pages to the host tier and release it; false if there is no room."""
        ...

    def clear(self) -> None:
        """Forget every prefix that no running sequence uses."""
        ...

    def lose(self) -> None:
        """Forget everything: what lay in the memory is gone. No sequence may run."""
        ...

    def check_integrity(self) -> None:
        """Raises: AssertionError naming what is wrong."""
        ...
