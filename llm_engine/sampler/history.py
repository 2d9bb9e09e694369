"""What penalties count: the tokens of one choice, kept as it grows."""

from collections.abc import Iterable

import numpy as np

from llm_engine.sampler.arrays import Floats
from llm_engine.types import SamplingParams

_FIRST_ROOM = 64


class TokenHistory:
    """Occurrences of each token, so that a step costs what it adds and not the answer's length.

    Invariants: `push` and `pop` are inverse; a token of the prompt counts for the repetition
    penalty only.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Iterable[int]) -> None:
        """Count the prompt's tokens."""
        self._params = params
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_ROOM, dtype=np.int64)
        self._counts = np.zeros(_FIRST_ROOM, dtype=np.float32)
        self._in_prompt = np.zeros(_FIRST_ROOM, dtype=np.bool_)
        if params.repetition_penalty != 1.0:
            for token_id in set(prompt_ids):
                slot = self._slot(token_id)
                self._in_prompt[slot] = True

    @classmethod
    def of(cls, params: SamplingParams, prompt_ids: Iterable[int]) -> "TokenHistory | None":
        """A history where a penalty needs one."""
        needs = params.presence_penalty or params.frequency_penalty
        return cls(params, prompt_ids) if needs or params.repetition_penalty != 1.0 else None

    def push(self, token_id: int) -> None:
        """Count a token of the answer."""
        slot = self._slot(token_id)
        self._counts[slot] += 1

    def pop(self, token_id: int) -> None:
        """Take back a token that was pushed."""
        self._counts[self._slots[token_id]] -= 1

    def penalise(self, logits_V: Floats) -> None:
        """Lower the logits of tokens that occurred, in place.

        Repetition divides positive logits and multiplies negative ones, for tokens of prompt or
        answer; presence is subtracted once and frequency once an occurrence, for the answer's.
        Source: Keskar et al. 2019, arXiv:1909.05858 (repetition); OpenAI's API (the others).
        """
        params, size = self._params, len(self._slots)
        ids, counts = self._ids[:size], self._counts[:size]
        values, is_said = logits_V[ids], counts > 0
        penalty = np.float32(params.repetition_penalty)
        if params.repetition_penalty != 1.0:
            lowered = np.where(values > 0, values / penalty, values * penalty)
            values = np.where(is_said | self._in_prompt[:size], lowered, values)
        values -= np.float32(params.presence_penalty) * is_said
        values -= np.float32(params.frequency_penalty) * counts
        logits_V[ids] = values

    def _slot(self, token_id: int) -> int:
        """A token's place in the arrays, which a new token may move: ask before indexing them."""
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._in_prompt = np.concatenate((self._in_prompt, np.zeros_like(self._in_prompt)))
        self._ids[slot] = token_id
        return slot
