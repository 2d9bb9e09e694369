"""Who waits for a prefix that a running sequence is computing."""

from llm_engine.scheduling.waiting import WaitingLine
from llm_engine.sequence import Sequence


class Followers:
    """Parked sequences by the one they wait for."""

    def __init__(self, waiting: WaitingLine) -> None:
        """Park and wake sequences of this line."""
        self._waiting = waiting
        self._by_leader: dict[int, list[tuple[int, Sequence]]] = {}

    def park(self, seq: Sequence, leader: int, num_tokens: int) -> None:
        """Let a sequence wait until `leader` has computed `num_tokens` tokens, or has stopped."""
        self._waiting.park(seq)
        self._by_leader.setdefault(leader, []).append((num_tokens, seq))

    def wake(self, leader: Sequence, up_to: int | None = None) -> None:
        """Let those go on that wait for `leader`: all, or as far as it has computed."""
        followers = self._by_leader.pop(leader.seq_id, None)
        if followers is None:
            return
        for num_tokens, seq in followers:
            if up_to is None or num_tokens <= up_to:
                self._waiting.unpark(seq)
        left = [each for each in followers if up_to is not None and each[0] > up_to]
        if left:
            self._by_leader[leader.seq_id] = left
