"""What the prefix cache did, and why it missed."""

from dataclasses import dataclass, field
from enum import StrEnum


class MissCause(StrEnum):
    """Why a request found nothing to reuse."""

    COLD = "cold"  # nobody computed this prefix before
    EVICTED = "evicted"  # it was there and had to make room, in at least one group
    BELOW_MINIMUM = "below_minimum"  # what is common is shorter than the shortest reusable prefix
    DIFFERENT_ADAPTER = "different_adapter"  # computed under another adapter
    DIFFERENT_SALT = "different_salt"  # computed under another cache salt
    PROMPT_LOGITS = "prompt_logits"  # the prompt's own logits were asked for
    CACHE_OFF = "cache_off"  # the engine runs without a prefix cache


@dataclass(slots=True)
class CacheCounters:
    """Totals since the start. A request counts once, when it first runs."""

    num_hits: int = 0
    num_partial_hits: int = 0
    num_hit_tokens: int = 0
    num_prompt_tokens: int = 0
    misses: dict[MissCause, int] = field(default_factory=dict[MissCause, int])
    num_warnings: int = 0

    def count_hit(self, hit_tokens: int, reusable_tokens: int) -> None:
        """A request that reused `hit_tokens` of the `reusable_tokens` of its prompt."""
        self.num_hits += 1
        self.num_partial_hits += hit_tokens < reusable_tokens
        self.num_hit_tokens += hit_tokens

    def count_miss(self, cause: MissCause) -> None:
        """A request that reused nothing."""
        self.misses[cause] = self.misses.get(cause, 0) + 1
