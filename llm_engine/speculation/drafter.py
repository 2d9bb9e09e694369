"""What guesses tokens: the protocols a drafter meets."""

# S rows whose tokens were kept, C channels.

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch


class Drafter(Protocol):
    """Guesses the next tokens of one sequence. Used by one thread at a time."""

    @property
    def acceptance(self) -> float:
        """Probability (0–1) that a token of the last proposal is kept, those before it kept."""
        ...

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """At most `max_tokens` guesses for what follows; none where there is no ground for one.

        `token_ids` are all known tokens; between two calls they only grow. Changes no answer: a
        wrong guess costs time alone.
        """
        ...

    def observe(self, num_accepted: int, num_proposed: int) -> None:
        """Learn how many of the first `num_proposed` tokens of the last proposal were right.

        Called once at most for a proposal. Fewer than were proposed may have been tried.
        """
        ...


@runtime_checkable
class HiddenStateDrafter(Drafter, Protocol):
    """A drafter that guesses from the model's own states, as multi-token-prediction heads do.

    After each step `take_hidden` comes before the next `propose`; before the first step of a
    sequence it has none and proposes nothing. Its guesses are the heads' likeliest tokens, so
    they are fixed and need no rule of rejection.
    """

    def take_hidden(self, hidden_SC: torch.Tensor, token_ids: Sequence[int]) -> None:
        """Take the final hidden states of the rows that yielded the tokens kept in this step.

        Row i predicted `token_ids[i]`; states of refused drafts are left out.
        Shapes: hidden (S, C), not normalised; token_ids S. The rows are copied, if kept at all.
        """
        ...
