"""The matcher over llguidance's parser."""

from collections.abc import Collection

import torch
from llguidance import LLMatcher

from llm_engine.errors import RequestFailed
from llm_engine.structured.matcher import num_words


class GrammarMatcher:
    """One choice under a compiled grammar: a `TokenMatcher`."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: Collection[int], vocab_size: int) -> None:
        """Take over a parser that stands at the beginning."""
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._num_words = num_words(vocab_size)
        # The parser itself is never shown an end, so that an end can be taken back like a token.
        self._num_ends = 0

    @property
    def is_finished(self) -> bool:
        """Whether nothing but an end-of-sequence token may follow."""
        return self._num_ends > 0 or self._matcher.is_stopped()

    def fill(self, bitmask_W: torch.Tensor) -> None:
        """Write the tokens allowed next. Shapes: (W,), int32, contiguous, on the CPU.

        Raises: RequestFailed if the grammar grew beyond the library's limits.
        """
        assert bitmask_W.is_contiguous()
        if self._num_ends:
            self._fill_ends(bitmask_W)
        elif bitmask_W.numel() == self._num_words:
            self._matcher.unsafe_compute_mask_ptr(bitmask_W.data_ptr(), self._num_words * 4)
        else:
            whole_W = torch.zeros(self._num_words, dtype=torch.int32)
            self._matcher.unsafe_compute_mask_ptr(whole_W.data_ptr(), self._num_words * 4)
            num_shared = min(self._num_words, bitmask_W.numel())
            bitmask_W.zero_()
            bitmask_W[:num_shared] = whole_W[:num_shared]
        self._raise_error()

    def accept(self, token_id: int) -> bool:
        """Advance by one token; false, and no change, for a token that is not allowed."""
        if token_id in self._eos_token_ids:
            if not self._num_ends and not self._matcher.is_accepting():
                return False
            self._num_ends += 1
            return True
        if self._num_ends:
            return False
        is_taken = self._matcher.try_consume_tokens([token_id]) == 1
        self._raise_error()
        return is_taken

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""
        num_ends = min(self._num_ends, num_tokens)
        self._num_ends -= num_ends
        if num_tokens > num_ends:
            is_back = self._matcher.rollback(num_tokens - num_ends)
            assert is_back, self._matcher.get_error()

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next whatever the logits say; may be empty."""
        return [] if self.is_finished else self._matcher.compute_ff_tokens()

    def _fill_ends(self, bitmask_W: torch.Tensor) -> None:
        bitmask_W.zero_()
        view = bitmask_W.numpy().view("uint32")
        for token_id in self._eos_token_ids:
            view[token_id // 32] |= 1 << (token_id % 32)

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise RequestFailed(
                "its constraint cannot be followed further within the limits: "
                f"{self._matcher.get_error().splitlines()[0]}"
            )
