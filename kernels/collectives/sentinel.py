"""Watching that what was measured still holds: a link that retrained, a card that throttles."""

from __future__ import annotations

import statistics

from kernels.collectives.choice import Knowledge, Question
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier

# One call in so many is timed, and so many timings are looked at together.
EVERY = 4096
WINDOW = 9
DRIFT_RATIO = 1.3

Key = tuple[str, str, int]


class Sentinel:
    """Times a few calls of measured choices.

    Its answers depend on nothing but the calls and on times that all ranks share, so all ranks
    fall back at the same call. It reports and falls back to the seed; it never measures anew
    while requests are served.
    """

    def __init__(self, knowledge: Knowledge, every: int = EVERY, window: int = WINDOW) -> None:
        self._knowledge, self._every, self._window = knowledge, every, window
        self._calls: dict[Key, int] = {}
        self._times_us: dict[Key, list[float]] = {}
        self._dropped: set[Key] = set()

    def is_due(self, question: Question, running: str) -> bool:
        """Whether this call is to be timed: the choice was measured, and its turn has come."""
        key = _key(question)
        if key in self._dropped or self._knowledge.chosen.get(key) != running:
            return False
        self._calls[key] = self._calls.get(key, 0) + 1
        return key in self._knowledge.times_us and self._calls[key] % self._every == 0

    def note(self, question: Question, slowest_us: float) -> Decision | None:
        """Take a time in; the decision to fall back once the median of a window has drifted."""
        key = _key(question)
        times_us = self._times_us.setdefault(key, [])
        times_us.append(slowest_us)
        if len(times_us) < self._window:
            return None
        now_us = statistics.median(times_us)
        times_us.clear()
        expected_us = self._knowledge.times_us[key]
        if now_us <= DRIFT_RATIO * expected_us:
            return None
        self._dropped.add(key)
        return self._drift(question, now_us, expected_us)

    def _drift(self, question: Question, now_us: float, expected_us: float) -> Decision:
        measured = self._knowledge.chosen[_key(question)]
        reason = f"takes {now_us:.0f} us, the table says {expected_us:.0f} us"
        return Decision(
            kind="collective",
            where=f"between {question.num_ranks} ranks",
            what=f"{question.operation} ({question.contract}): drift",
            asked="auto",
            chosen="the seed's choice from now on",
            tier=Tier.VENDOR,
            source="default",
            case=str(question),
            reasons=(reason,),
            rejected=(Rejection(candidate=measured, reasons=(reason,)),),
            evidence=self._knowledge.evidence,
            remedy="look for a slower link or a hot card, then measure again with the tuner",
        )


def _key(question: Question) -> Key:
    return question.operation, question.contract, question.bucket_bytes
