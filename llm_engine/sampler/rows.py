"""What the sampler takes and gives for one row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from llm_engine.sampler.arrays import Floats, Ints
from llm_engine.sampler.history import TokenHistory
from llm_engine.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token; log probabilities (natural) where they were asked for, best first."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


class Unsampled(StrEnum):
    """Why a row has no token."""

    NOT_FINITE = "the model's logits are not finite"
    NOTHING_ALLOWED = "its constraints leave no token to choose"


@dataclass(frozen=True, slots=True)
class LogitBias:
    """A bias by token, as arrays made once for a choice."""

    ids: Ints
    values: Floats

    @classmethod
    def of(cls, bias: Mapping[int, float]) -> "LogitBias | None":
        """None for no bias at all."""
        if not bias:
            return None
        ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        return cls(ids, np.fromiter(bias.values(), dtype=np.float32, count=len(bias)))


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """What the sampler must know of one row of logits.

    `uniform` in [0, 1) draws the token; so do `seed`, 64 bits with a sign, and `position` where a
    device draws. `draft_ids` are taken as said after `history` for this
    row. `banned_ids` may not be chosen, unless the constraint leaves nothing else.
    Shapes: bitmask (W,), see `llm_engine.structured.matcher`; bit 0 forbids a token.
    """

    params: SamplingParams
    uniform: float
    history: TokenHistory | None = None
    draft_ids: tuple[int, ...] = ()
    bias: LogitBias | None = None
    banned_ids: Ints | None = None
    bitmask_W: torch.Tensor | None = None
    seed: int = 0
    position: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether its token alone is wanted, of its logits as they are."""
        return not self.is_adjusted and not self.params.logprobs

    @property
    def is_adjusted(self) -> bool:
        """Whether its logits change before the choice."""
        adjustments = (self.history, self.bias, self.banned_ids, self.bitmask_W)
        return any(adjustment is not None for adjustment in adjustments)

    def adjust(self, logits_V: Floats) -> None:
        """Apply penalties, bias, mask and bans, in place."""
        if self.history is not None:
            self._penalise(self.history, logits_V)
        if self.bias is not None:
            logits_V[self.bias.ids] += self.bias.values
        if self.bitmask_W is not None:
            _forbid(logits_V, self.bitmask_W)
        if self.banned_ids is not None:
            kept = logits_V[self.banned_ids]
            logits_V[self.banned_ids] = -np.inf
            if self.bitmask_W is not None and logits_V.max() == -np.inf:
                logits_V[self.banned_ids] = kept

    def _penalise(self, history: TokenHistory, logits_V: Floats) -> None:
        for token_id in self.draft_ids:
            history.push(token_id)
        history.penalise(logits_V)
        for token_id in self.draft_ids:
            history.pop(token_id)


# One token per row. Shapes: logits (S, V), float32.
Sampler = Callable[[torch.Tensor, Sequence[SamplerRow]], list[Sampled | Unsampled]]


def _forbid(logits_V: Floats, bitmask_W: torch.Tensor) -> None:
    """Set what the mask forbids to -inf; tokens past the mask's end are forbidden too."""
    size = len(logits_V)
    packed = bitmask_W.numpy().view(np.uint8)
    is_allowed = np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)
    np.putmask(logits_V, ~is_allowed, -np.inf)
