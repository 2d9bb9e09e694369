"""A sequence: one choice of one request, and the chunks in which it is computed."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens known so far, and how many of them are already in the cache.

    Invariants: 0 <= num_computed < len(token_ids) while unfinished; the tokens before
    `num_prompt_tokens` are the prompt; `max_total_tokens` bounds len(token_ids).

    `num_cached_tokens` counts the prompt tokens that the prefix cache served when the sequence
    first ran; `has_run` says that it did. `draft_ids` are guesses for the tokens after the last
    known one, set by the drafter before a step and cleared by the engine after it.
    `wants_prompt_logits` asks for logits of every row that starts in the prompt; such a prompt is
    always computed, never served from the cache. `has_failed` says that its keys and values are
    not to be trusted, so that none of them stays in the cache. `deadline_s` is a moment of the
    engine's clock, in seconds.
    """

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int
    priority: int = 0
    arrival: int = 0
    num_computed: int = 0
    queued_at_step: int = 0
    request_id: str = ""
    tenant: str = ""
    adapter_id: str | None = None
    cache_salt: str = ""
    deadline_s: float | None = None
    num_cached_tokens: int = 0
    has_run: bool = False
    draft_ids: tuple[int, ...] = ()
    wants_prompt_logits: bool = False
    has_failed: bool = False

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose keys and values are not in the cache yet; drafts do not count."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of a sequence, the last `num_drafts` of them guesses.

    `is_last` when a token is due after it: the chunk then reaches the last known token. Logits
    are due for its last `num_logits` rows; row i of the chunk predicts token start + i + 1. After
    a chunk with drafts, the accepted ones and one more token are appended to `seq.token_ids`; the
    cache slots of the others are written over.
    """

    seq: Sequence
    start: int
    num_tokens: int
    is_last: bool
    num_drafts: int = 0

    @property
    def end(self) -> int:
        """Tokens in the cache once the chunk is computed, drafts included."""
        return self.start + self.num_tokens

    @property
    def token_ids(self) -> list[int]:
        """What is computed: known tokens, then drafts. Valid until the sequence advances."""
        known = self.seq.token_ids[self.start : self.end - self.num_drafts]
        return [*known, *self.seq.draft_ids[: self.num_drafts]] if self.num_drafts else known

    @property
    def num_logits(self) -> int:
        """How many of its last rows need logits.

        All rows where the prompt is to be scored and the chunk starts inside it; else one and the
        drafts of a last chunk; else none.
        """
        if self.seq.wants_prompt_logits and self.start < self.seq.num_prompt_tokens:
            return self.num_tokens
        return 1 + self.num_drafts if self.is_last else 0
