"""A sequence: one choice of one request, with what the scheduler must know about it."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens known so far, and how many of them are already in the cache.

    Invariants: 0 <= num_computed < len(token_ids) while unfinished; the tokens before
    `num_prompt_tokens` are the prompt; `max_total_tokens` bounds len(token_ids).
    """

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int
    priority: int = 0
    arrival: int = 0
    num_computed: int = 0
    queued_at_step: int = field(default=0)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are not in the cache yet."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def generated_ids(self) -> list[int]:
        """The answer's tokens, as a copy."""
        return self.token_ids[self.num_prompt_tokens :]
