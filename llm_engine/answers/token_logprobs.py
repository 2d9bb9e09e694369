"""Log probabilities in the form that callers read, of answers and of prompts."""

from collections.abc import Sequence

import torch

from llm_engine.sampler import Sampled, Score, score
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import LOGPROB_FLOOR, PromptScored, TokenLogprob

# N rows of the prompt, V vocabulary.


def logprob_of(sampled: Sampled, tokenizer: Tokenizer) -> TokenLogprob | None:
    """A sampled token's entry, if its log probability was asked for."""
    if sampled.logprob is None:
        return None
    return _entry_with_top(tokenizer, sampled.token_id, (sampled.logprob, sampled.top))


class PromptScores:
    """The prompt's log probabilities as its chunks are computed, in any cut and more than once.

    Invariants: each position is scored once; `event` is there when all are.
    """

    def __init__(self, prompt_ids: Sequence[int], num_top: int, tokenizer: Tokenizer) -> None:
        """Nothing is scored but the first token, which has no log probability."""
        self._prompt_ids = tuple(prompt_ids)
        self._num_top = num_top
        self._tokenizer = tokenizer
        self._entries: list[TokenLogprob | None] = [None]

    @property
    def is_complete(self) -> bool:
        """Whether every token is scored."""
        return len(self._entries) == len(self._prompt_ids)

    def take(self, start: int, logits_NV: torch.Tensor) -> bool:
        """Score with the logits of tokens from `start` on; false if they are not finite.

        Rows already seen, as after a preemption, are passed over, and so are rows that predict
        what follows the prompt.
        """
        first, last = len(self._entries) - 1, len(self._prompt_ids) - 1
        assert start <= first, f"tokens {first} to {start} of the prompt have no logits"
        rows_NV = logits_NV[first - start : max(last - start, 0)]
        wanted = self._prompt_ids[first + 1 : first + 1 + len(rows_NV)]
        for token_id, result in zip(
            wanted, score(rows_NV.cpu().numpy(), wanted, self._num_top), strict=True
        ):
            if result is None:
                return False
            self._entries.append(_entry_with_top(self._tokenizer, token_id, result))
        return True

    def event(self) -> PromptScored:
        """The scores of the whole prompt."""
        assert self.is_complete
        first = tuple(self._tokenizer.token_bytes(self._prompt_ids[0]))
        return PromptScored(self._prompt_ids, tuple(self._entries), first)


def _entry_with_top(tokenizer: Tokenizer, token_id: int, result: Score) -> TokenLogprob:
    logprob, top = result
    entries = tuple(_entry(tokenizer, other, value) for other, value in top)
    return _entry(tokenizer, token_id, logprob, entries)


def _entry(
    tokenizer: Tokenizer, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
) -> TokenLogprob:
    raw = tokenizer.token_bytes(token_id)
    return TokenLogprob(
        token=raw.decode("utf-8", errors="replace"),
        logprob=max(logprob, LOGPROB_FLOOR),
        bytes=tuple(raw),
        top=top,
    )
