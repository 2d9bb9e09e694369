"""Sequences that gave up their pages for a copy in the host tier."""

from collections.abc import Sequence

from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.holding import ABSENT
from llm_engine.cache.host import HostTier
from llm_engine.sequence import Sequence as ScheduledSequence


class Swaps:
    """The tables of sequences whose pages are in the host tier, by sequence."""

    def __init__(self, layout: CacheLayout, host: HostTier) -> None:
        """Start with none."""
        self._layout = layout
        self._host = host
        self._saved: dict[int, tuple[int, list[list[int]]]] = {}

    def has(self, seq_id: int) -> bool:
        """Whether a sequence waits here."""
        return seq_id in self._saved

    def save(self, seq: ScheduledSequence, tables: Sequence[Sequence[int]]) -> bool:
        """Copy the pages that hold computed tokens.

        False if the host tier has no room, or if nothing is computed yet.
        """
        if not seq.num_computed:
            return False
        kept = [list(table[: self._num_used(g, seq)]) for g, table in enumerate(tables)]
        ticket = self._host.save([_present(table) for table in kept], owner=None)
        if ticket is None:
            return False
        self._saved[seq.seq_id] = (ticket, kept)
        return True

    def tables(self, seq_id: int) -> list[list[int]]:
        """The tables as they were."""
        return self._saved[seq_id][1]

    def load(self, seq_id: int, fresh: Sequence[Sequence[int]]) -> list[list[int]]:
        """Copy the contents into fresh pages, as many as were saved. Returns the new tables."""
        ticket, tables = self._saved.pop(seq_id)
        result: list[list[int]] = []
        for group, (table, pages) in enumerate(zip(tables, fresh, strict=True)):
            if pages:
                self._host.load(ticket, group, pages)
            result.append([ABSENT] * (len(table) - len(pages)) + list(pages))
        self._host.drop(ticket)
        return result

    def drop(self, seq_id: int) -> None:
        """Forget a sequence; an unknown one is no error."""
        saved = self._saved.pop(seq_id, None)
        if saved is not None:
            self._host.drop(saved[0])

    def clear(self) -> None:
        """Forget every sequence: each is computed again."""
        for seq_id in list(self._saved):
            self.drop(seq_id)

    def _num_used(self, group: int, seq: ScheduledSequence) -> int:
        return -(-seq.num_computed // self._layout.groups[group].page_tokens)


def _present(table: Sequence[int]) -> list[int]:
    return [page for page in table if page != ABSENT]
