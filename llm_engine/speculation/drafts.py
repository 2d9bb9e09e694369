"""The drafts of one sequence: proposed, bound to its constraint, and learned from."""

from collections.abc import Sequence

import torch

from llm_engine.speculation.drafter import Drafter, HiddenStateDrafter
from llm_engine.structured.matcher import TokenMatcher


class SequenceDrafts:
    """A drafter with its last proposal, and how its drafts fared.

    A proposal that is not computed is compared with the answer all the same, so that a drafter is
    judged for nothing where drafting does not pay.
    """

    def __init__(self, drafter: Drafter) -> None:
        """Nothing is proposed."""
        self.num_accepted = 0
        self.num_rejected = 0
        self._drafter = drafter
        self._proposal: tuple[int, ...] = ()
        self._is_forced = False

    @property
    def acceptance(self) -> float:
        """Probability (0–1) that a token of the proposal is kept, those before it kept."""
        return 1.0 if self._is_forced else self._drafter.acceptance

    def propose(
        self, token_ids: Sequence[int], max_tokens: int, matcher: TokenMatcher | None
    ) -> tuple[int, ...]:
        """Tokens that the constraint forces, or else guesses, cut before one that it forbids."""
        self._is_forced = False
        if max_tokens < 1:
            self._proposal = ()
        elif matcher is None:
            self._proposal = self._drafter.propose(token_ids, max_tokens)
        elif forced := matcher.forced_tokens():
            self._proposal, self._is_forced = tuple(forced[:max_tokens]), True
        else:
            self._proposal = _allowed(self._drafter.propose(token_ids, max_tokens), matcher)
        return self._proposal

    def observe(self, kept_ids: Sequence[int], num_drafts: int) -> int:
        """Compare the proposal with what the step yielded; returns how many drafts were kept."""
        num_tried = max(num_drafts, 1)
        num_right = 0
        for guess, token_id in zip(self._proposal[:num_tried], kept_ids, strict=False):
            if guess != token_id:
                break
            num_right += 1
        if self._proposal and not self._is_forced:
            # Drafts beyond the end of the answer were neither right nor wrong.
            self._drafter.observe(num_right, min(num_tried, len(self._proposal), len(kept_ids)))
        num_accepted = min(num_right, num_drafts)
        self.num_accepted += num_accepted
        self.num_rejected += num_drafts - num_accepted
        self._proposal = ()
        return num_accepted

    def take_hidden(self, hidden_SC: torch.Tensor, kept_ids: Sequence[int]) -> None:
        """Pass the states of the kept rows to a drafter that asks for them."""
        if isinstance(self._drafter, HiddenStateDrafter):
            self._drafter.take_hidden(hidden_SC[: len(kept_ids)], kept_ids)


def _allowed(proposal: tuple[int, ...], matcher: TokenMatcher) -> tuple[int, ...]:
    num_allowed = 0
    for token_id in proposal:
        if matcher.is_finished or not matcher.accept(token_id):
            break
        num_allowed += 1
    if num_allowed:
        matcher.rollback(num_allowed)
    return proposal[:num_allowed]
