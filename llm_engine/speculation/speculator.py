"""How much is drafted in a step: as much as pays, by what steps cost and what drafts achieve."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llm_engine.errors import RequestFailed
from llm_engine.sequence import Chunk
from llm_engine.sequence import Sequence as ScheduledSequence
from llm_engine.speculation.cost import StepCost, best_lengths
from llm_engine.speculation.drafter import Drafter
from llm_engine.speculation.drafts import SequenceDrafts
from llm_engine.structured.matcher import TokenMatcher


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """A sequence that may get drafts, with its drafter's state and its constraint."""

    seq: ScheduledSequence
    drafts: SequenceDrafts
    matcher: TokenMatcher | None


class Speculator:
    """Sets `draft_ids` of sequences before a step and learns from the step after it.

    Units: `max_draft_tokens` tokens a sequence and step; `clock` seconds.
    """

    def __init__(
        self,
        make_drafter: Callable[[], Drafter],
        *,
        max_draft_tokens: int,
        clock: Callable[[], float],
        is_adaptive: bool = True,
    ) -> None:
        """`is_adaptive=False` computes every proposal in full, whatever it costs."""
        self._make_drafter = make_drafter
        self._max_draft_tokens = max_draft_tokens
        self._clock = clock
        self._is_adaptive = is_adaptive
        self._cost = StepCost()
        self._started_s: float | None = None

    def follow(self) -> SequenceDrafts:
        """The drafts of a sequence that begins."""
        return SequenceDrafts(self._make_drafter())

    def draft(self, targets: Sequence[DraftTarget]) -> None:
        """Choose the drafts of the next step; `targets` are all sequences that have an answer."""
        self._started_s = self._clock()
        proposals = [self._propose(target) for target in targets]
        limits = [len(proposal) for proposal in proposals]
        lengths = limits
        if self._is_adaptive and any(limits):
            lengths = [0] * len(targets)
            if self._cost.is_measured:
                acceptances = [target.drafts.acceptance for target in targets]
                lengths = best_lengths(acceptances, limits, len(targets), self._cost)
        for target, proposal, length in zip(targets, proposals, lengths, strict=True):
            target.seq.draft_ids = proposal[:length]

    def observe(self, chunks: Sequence[Chunk]) -> None:
        """Time the step since `draft`, if it held nothing but next tokens and drafts."""
        if self._started_s is None:
            return
        seconds, self._started_s = self._clock() - self._started_s, None
        if all(chunk.is_last and chunk.num_tokens == 1 + chunk.num_drafts for chunk in chunks):
            self._cost.observe(sum(chunk.num_tokens for chunk in chunks), seconds)

    def _propose(self, target: DraftTarget) -> tuple[int, ...]:
        seq = target.seq
        # The step yields one token more than it accepts.
        room = seq.max_total_tokens - len(seq.token_ids) - 1
        num_tokens = min(self._max_draft_tokens, room)
        try:
            return target.drafts.propose(seq.token_ids, num_tokens, target.matcher)
        except RequestFailed:
            # The constraint fails again, and then its request, when its mask is asked for.
            return ()
