"""Which sequences have run out of time. The clock is the caller's."""

import heapq

from llm_engine.sequence import Sequence


class Deadlines:
    """Sequences by deadline. Sequences that ended are forgotten as they come up."""

    def __init__(self) -> None:
        """Start with none."""
        self._heap: list[tuple[float, int, Sequence]] = []
        self._known: set[int] = set()

    def add(self, seq: Sequence) -> None:
        """Watch a sequence that has a deadline; others are ignored."""
        if seq.deadline_s is not None:
            self._known.add(seq.seq_id)
            heapq.heappush(self._heap, (seq.deadline_s, seq.seq_id, seq))

    def remove(self, seq: Sequence) -> None:
        """Watch a sequence no longer."""
        self._known.discard(seq.seq_id)
        if len(self._heap) > 2 * len(self._known) + 64:
            self._heap = [item for item in self._heap if item[1] in self._known]
            heapq.heapify(self._heap)

    def take_expired(self, now_s: float) -> list[Sequence]:
        """Sequences whose deadline is not after `now_s`, each once."""
        expired: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now_s:
            _, seq_id, seq = heapq.heappop(self._heap)
            if seq_id in self._known:
                self._known.remove(seq_id)
                expired.append(seq)
        return expired
