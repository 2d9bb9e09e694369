"""A request that is being answered: its counts, its prompt's scores, its last event."""

from collections.abc import Sequence

import torch

from llm_engine.answers.choice import Choice
from llm_engine.answers.token_logprobs import PromptScores
from llm_engine.errors import RequestFailed
from llm_engine.prompt import PreparedRequest
from llm_engine.sequence import Chunk
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import Finished, PromptScored, TextDelta

Event = tuple[str, TextDelta | PromptScored | Finished]

# N rows of a chunk, V vocabulary.


class ActiveRequest:
    """What is kept of a request between its opening and its last event.

    Invariants: `PromptScored`, where asked for, comes before every delta; `Finished` comes once,
    after the last delta of the last choice.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        choices: Sequence[Choice],
        deadline_s: float | None,
        tokenizer: Tokenizer,
    ) -> None:
        """Begin; `deadline_s` is a moment of the engine's clock."""
        self.choices = list(choices)
        self.deadline_s = deadline_s
        self.num_completion_tokens = 0
        self._request_id = prepared.request.request_id
        self._first_seq = choices[0].seq
        self._num_reasoning_tokens = 0
        self._num_accepted = 0
        self._num_rejected = 0
        self._held: list[Event] = []
        self._scores: PromptScores | None = None
        num_top = prepared.request.params.prompt_logprobs
        if num_top is not None:
            self._scores = PromptScores(prepared.prompt_ids, num_top, tokenizer)
            self._first_seq.wants_prompt_logits = True

    def score(self, chunk: Chunk, logits_NV: torch.Tensor) -> list[Event]:
        """Score a part of the prompt, if this chunk's logits are for that.

        Raises: RequestFailed where they are not finite.
        """
        if self._scores is None or not chunk.seq.wants_prompt_logits:
            return []
        if not self._scores.take(chunk.start, logits_NV):
            chunk.seq.has_failed = True
            raise RequestFailed("the model's logits of the prompt are not finite")
        if not self._scores.is_complete:
            return []
        events, self._held = [(self._request_id, self._scores.event()), *self._held], []
        self._scores, chunk.seq.wants_prompt_logits = None, False
        return events

    def add(self, choice: Choice, delta: TextDelta) -> list[Event]:
        """Count a delta and pass it on, with `Finished` after the last one."""
        self.num_completion_tokens += len(delta.token_ids)
        events: list[Event] = [(self._request_id, delta)]
        if delta.finish_reason is not None:
            self.choices.remove(choice)
            self._num_reasoning_tokens += choice.num_reasoning_tokens
            if choice.drafts is not None:
                self._num_accepted += choice.drafts.num_accepted
                self._num_rejected += choice.drafts.num_rejected
            if not self.choices:
                events.append((self._request_id, self._finished()))
        if self._scores is None:
            return events
        self._held.extend(events)
        return []

    def _finished(self) -> Finished:
        return Finished(
            prompt_tokens=self._first_seq.num_prompt_tokens,
            completion_tokens=self.num_completion_tokens,
            cached_tokens=self._first_seq.num_cached_tokens,
            reasoning_tokens=self._num_reasoning_tokens,
            accepted_draft_tokens=self._num_accepted,
            rejected_draft_tokens=self._num_rejected,
        )
