"""What a sampler must know of a constraint: which tokens may come next, and that one came."""

# S rows, W words of 32 bits.

from typing import Protocol

import torch

WORD_BITS = 32


class TokenMatcher(Protocol):
    """The state of one choice under its constraint. Used by one thread at a time.

    Before each token: `fill` a row, forbid what it does not set, sample, `accept`. A drafted token
    is accepted the same way and taken back by `rollback`. The end-of-sequence tokens are allowed
    exactly where the answer is complete, whatever `ignore_eos` and `min_tokens` say.
    """

    @property
    def is_finished(self) -> bool:
        """Whether nothing but an end-of-sequence token may follow: the choice ends with "stop"."""
        ...

    def fill(self, bitmask_W: torch.Tensor) -> None:
        """Write the tokens allowed next, bit i of word i // 32 for token i.

        Shapes: bitmask (W,), int32, contiguous, on the CPU, as `allocate_bitmask` makes it.
        Raises: RequestFailed if the constraint cannot be followed further within its limits.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by one token; false, and no change, for a token that is not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next whatever the logits say, for use as drafts; may be empty."""
        ...


def num_words(vocab_size: int) -> int:
    """Words of a bitmask over a vocabulary."""
    return -(-vocab_size // WORD_BITS)


def allocate_bitmask(num_rows: int, vocab_size: int) -> torch.Tensor:
    """A bitmask that allows everything. Shapes: (S, W), int32, on the CPU."""
    return torch.full((num_rows, num_words(vocab_size)), -1, dtype=torch.int32)
