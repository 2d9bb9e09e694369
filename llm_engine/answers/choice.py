"""One choice of a request as it grows: from sampled tokens to the events a caller sees."""

from collections.abc import Sequence

import numpy as np
import torch

from llm_engine.answers.text import AnswerText, Piece, join
from llm_engine.answers.token_logprobs import logprob_of
from llm_engine.errors import RequestFailed
from llm_engine.prompt import PreparedRequest
from llm_engine.sampler import (
    LogitBias,
    PositionUniforms,
    Sampled,
    SamplerRow,
    TokenHistory,
    Unsampled,
)
from llm_engine.sequence import Sequence as ScheduledSequence
from llm_engine.speculation.drafts import SequenceDrafts
from llm_engine.structured.matcher import allocate_bitmask
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import FinishReason, TextDelta


class Choice:
    """Ties a scheduled sequence to its sampling, its constraint, its text and its ending.

    Invariants: its tokens depend on the request, its seed and its index alone; a refused draft
    leaves no trace in any of its parts.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        index: int,
        seq: ScheduledSequence,
        *,
        seed: int,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        drafts: SequenceDrafts | None = None,
    ) -> None:
        """Start with an empty answer."""
        params = prepared.request.params
        self.request_id = prepared.request.request_id
        self.index = index
        self.seq = seq
        self.drafts = drafts
        self.matcher = None if prepared.matcher is None else prepared.matcher()
        self._params = params
        self._tokenizer = tokenizer
        parser = None if prepared.parser is None else prepared.parser()
        self._text = AnswerText(tokenizer, params, parser)
        self._uniforms = PositionUniforms(seed, index)
        self._history = TokenHistory.of(params, prepared.prompt_ids)
        self._bias = LogitBias.of(params.logit_bias)
        # What is ignored as an end is no text either, where special tokens are shown.
        self._silent_ids = eos_token_ids if params.ignore_eos else frozenset[int]()
        self._ending_ids = (eos_token_ids - self._silent_ids) | frozenset(params.stop_token_ids)
        # Under a constraint the end of the sequence ends the answer even where it is ignored.
        banned = self._ending_ids if self.matcher is None else self._ending_ids | eos_token_ids
        self._banned_ids = np.array(sorted(banned), dtype=np.int64)

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens that went into reasoning."""
        return self._text.num_reasoning_tokens

    def sampler_rows(self, num_drafts: int, vocab_size: int) -> list[SamplerRow]:
        """The sampler's view of the next token, and of one more after each draft.

        Raises: RequestFailed if the constraint cannot be followed further.
        """
        draft_ids = self.seq.draft_ids[:num_drafts]
        masks = self._masks(draft_ids, vocab_size)
        params, first = self._params, self.seq.num_generated
        return [
            SamplerRow(
                params=params,
                uniform=0.0 if params.is_greedy else self._uniforms.drawing(first + i),
                seed=self._uniforms.device_seed,
                position=first + i,
                history=self._history,
                draft_ids=draft_ids[:i],
                bias=self._bias,
                banned_ids=self._banned_ids if first + i < params.min_tokens else None,
                bitmask_W=masks[i],
            )
            for i in range(1 + len(draft_ids))
        ]

    def advance(self, sampled: Sequence[Sampled | Unsampled]) -> TextDelta:
        """Append the tokens due: the first, and one more for as long as drafts equal them.

        Raises: RequestFailed for a row without a token, or one that the constraint refuses.
        """
        draft_ids = self.seq.draft_ids[: len(sampled) - 1]
        pieces: list[Piece] = []
        kept: list[Sampled] = []
        reason: FinishReason | None = None
        for i, item in enumerate(sampled):
            if isinstance(item, Unsampled):
                self.seq.has_failed |= item is Unsampled.NOT_FINITE
                raise RequestFailed(str(item))
            piece, reason = self._append(item.token_id)
            pieces.append(piece)
            kept.append(item)
            if reason is not None or i == len(draft_ids) or draft_ids[i] != item.token_id:
                break
        whole = join(pieces)
        entries = [logprob_of(item, self._tokenizer) for item in kept]
        return TextDelta(
            index=self.index,
            text=whole.content,
            token_ids=tuple(item.token_id for item in kept),
            logprobs=tuple(e for e in entries if e is not None) if self._params.logprobs else None,
            finish_reason=reason,
            reasoning=whole.reasoning,
            tool_calls=whole.tool_calls,
        )

    def _masks(self, draft_ids: Sequence[int], vocab_size: int) -> Sequence[torch.Tensor | None]:
        """What the constraint allows next, and after each draft; it is left where it was."""
        matcher = self.matcher
        if matcher is None:
            return [None] * (1 + len(draft_ids))
        bitmask_SW = allocate_bitmask(1 + len(draft_ids), vocab_size)
        num_accepted = 0
        for i, bitmask_W in enumerate(bitmask_SW):
            matcher.fill(bitmask_W)
            if i == len(draft_ids) or matcher.is_finished or not matcher.accept(draft_ids[i]):
                break
            num_accepted += 1
        if num_accepted:
            matcher.rollback(num_accepted)
        return list(bitmask_SW)

    def _append(self, token_id: int) -> tuple[Piece, FinishReason | None]:
        self.seq.token_ids.append(token_id)
        if self._history is not None:
            self._history.push(token_id)
        is_complete = self._accept(token_id)
        if token_id in self._ending_ids:
            return self._end(Piece(), "stop")
        piece = Piece()
        if token_id not in self._silent_ids:
            may_stop = self.seq.num_generated > self._params.min_tokens
            piece = self._text.push(token_id, may_stop=may_stop)
        if piece.is_stopped:
            return piece, self._stop_reason
        if is_complete:
            return self._end(piece, "stop")
        if len(self.seq.token_ids) < self.seq.max_total_tokens:
            return piece, None
        return self._end(piece, "length")

    def _accept(self, token_id: int) -> bool:
        """Advance the constraint; true when nothing may follow any more."""
        if self.matcher is None:
            return False
        if not self.matcher.accept(token_id):
            raise RequestFailed(f"its constraint refuses token {token_id}, which it had allowed")
        return self.matcher.is_finished

    def _end(self, piece: Piece, reason: FinishReason) -> tuple[Piece, FinishReason]:
        piece.extend(self._text.finish(is_cut=reason == "length"))
        is_stopped = reason == "stop" or piece.is_stopped
        return piece, self._stop_reason if is_stopped else reason

    @property
    def _stop_reason(self) -> FinishReason:
        return "tool_calls" if self._text.has_tool_calls else "stop"
