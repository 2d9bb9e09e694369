"""A cache in several memories: each sequence lies in one of them whole, with its prefix."""

from collections.abc import Sequence

from llm_engine.cache.kv_cache import Admission, KVCache
from llm_engine.sequence import Sequence as ScheduledSequence


class DividedCache:
    """See `llm_engine.cache.sequence_cache.SequenceCache`.

    A sequence goes where the tokens of its prompt that are not cached, and those that the
    sequences already there hold, are fewest: prefixes draw it, and load pushes it away. It stays
    there until it is released; one that gave up its pages for a copy comes back to the same part.
    Invariants: those of each part; no sequence is in two.
    """

    def __init__(self, parts: Sequence[KVCache]) -> None:
        """Parts of the same layout and number of pages, all empty."""
        self.parts = list(parts)
        self.layout = self.parts[0].layout
        self._part_of: dict[int, int] = {}

    @property
    def num_pages(self) -> int:
        """Pages of the first group in each part, those out of service included."""
        return self.parts[0].num_pages

    @property
    def pages_by_group(self) -> Sequence[int]:
        """Pages of each group in each part, those out of service included."""
        return self.parts[0].pages_by_group

    @property
    def page_size(self) -> int:
        """Tokens of a page of the first group."""
        return self.parts[0].page_size

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that every part can hold."""
        return min(part.capacity_tokens for part in self.parts)

    def part_of(self, seq_id: int) -> int:
        """In which part a sequence's pages, or their copy, are; 0 for an unknown sequence."""
        return self._part_of.get(seq_id, 0)

    def table(self, seq_id: int, group: int = 0) -> Sequence[int]:
        """The pages of a sequence in its part; empty for an unknown sequence."""
        return self._holder(seq_id).table(seq_id, group)

    def admit(self, seq: ScheduledSequence) -> Admission:
        """As `KVCache.admit`, in the best part that has room."""
        admission = Admission(False)
        for index in self._candidates(seq):
            admission = self.parts[index].admit(seq)
            if admission.is_admitted:
                self._part_of[seq.seq_id] = index
            if admission.is_admitted or admission.leader is not None:
                break
        return admission

    def can_grow(self, seq_id: int, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self._holder(seq_id).can_grow(seq_id, num_tokens)

    def grow(self, seq_id: int, num_tokens: int) -> None:
        """Give a running sequence pages for `num_tokens` tokens; `can_grow` must hold."""
        self._holder(seq_id).grow(seq_id, num_tokens)

    def num_available(self, group: int) -> int:
        """Pages that can be had in all parts together."""
        return sum(part.num_available(group) for part in self.parts)

    def commit(self, seq: ScheduledSequence) -> None:
        """Take in what was computed, up to `seq.num_computed`."""
        self._holder(seq.seq_id).commit(seq)

    def release(self, seq: ScheduledSequence) -> None:
        """Take back everything of a sequence; an unknown one holds nothing."""
        self._holder(seq.seq_id).release(seq)
        self._part_of.pop(seq.seq_id, None)

    def swap_out(self, seq: ScheduledSequence) -> bool:
        """Copy a sequence's pages to its part's host tier and release it; false without room."""
        return self._holder(seq.seq_id).swap_out(seq)

    def clear(self) -> None:
        """Forget every prefix that no running sequence uses."""
        for part in self.parts:
            part.clear()

    def lose(self) -> None:
        """Forget everything, copies too. No sequence may run."""
        for part in self.parts:
            part.lose()
        self._part_of.clear()

    def check_integrity(self) -> None:
        """Verify every part. Raises: AssertionError naming what is wrong."""
        for part in self.parts:
            part.check_integrity()

    def _holder(self, seq_id: int) -> KVCache:
        return self.parts[self.part_of(seq_id)]

    def _candidates(self, seq: ScheduledSequence) -> Sequence[int]:
        """Parts, the best one first; of one that has a copy somewhere, that part alone."""
        if seq.seq_id in self._part_of:
            return (self._part_of[seq.seq_id],)
        return sorted(range(len(self.parts)), key=lambda index: self._cost(self.parts[index], seq))

    def _cost(self, part: KVCache, seq: ScheduledSequence) -> int:
        held = part.pools[0].num_used * part.page_size
        return len(seq.token_ids) - part.num_reusable(seq) + held
