"""One choice of a request as it grows: from sampled tokens to the events a caller sees."""

import torch

from llm_engine.detokenizer import Detokenizer
from llm_engine.sampler import Sampled, SamplerRow
from llm_engine.sequence import Sequence
from llm_engine.stop_strings import StopMatcher
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import (
    LOGPROB_FLOOR,
    FinishReason,
    SamplingParams,
    TextDelta,
    TokenLogprob,
)


class Choice:
    """Ties a scheduled sequence to its sampling, its text and its ending.

    Invariants: the texts of its deltas joined equal the decoded answer, cut before a stop string.
    """

    def __init__(
        self,
        request_id: str,
        index: int,
        seq: Sequence,
        params: SamplingParams,
        generator: torch.Generator,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Start with an empty answer."""
        self.request_id = request_id
        self.index = index
        self.seq = seq
        self._params = params
        self._generator = generator
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.decode)
        self._stops = StopMatcher(params.stop)
        eos_ids = frozenset[int]() if params.ignore_eos else eos_token_ids
        self._ending_ids = eos_ids | frozenset(params.stop_token_ids)

    def sampler_row(self) -> SamplerRow:
        """The sampler's view of this choice, before its next token."""
        is_short = self.seq.num_generated < self._params.min_tokens
        num_prompt = self.seq.num_prompt_tokens
        return SamplerRow(
            params=self._params,
            generator=self._generator,
            prompt_ids=self.seq.token_ids[:num_prompt] if self._has_penalties else (),
            generated_ids=self.seq.token_ids[num_prompt:] if self._has_penalties else (),
            banned_ids=tuple(self._ending_ids) if is_short else (),
        )

    def advance(self, sampled: Sampled) -> TextDelta:
        """Append a token and say what became of the text and of the choice."""
        self.seq.token_ids.append(sampled.token_id)
        text, finish_reason = self._text_of(sampled.token_id)
        return TextDelta(
            index=self.index,
            text=text,
            token_ids=(sampled.token_id,),
            logprobs=self._logprobs(sampled),
            finish_reason=finish_reason,
        )

    @property
    def _has_penalties(self) -> bool:
        params = self._params
        return bool(
            params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
        )

    def _text_of(self, token_id: int) -> tuple[str, FinishReason | None]:
        if token_id in self._ending_ids:
            return self._last_text()[0], "stop"
        fresh = self._detokenizer.push(token_id)
        if self.seq.num_generated <= self._params.min_tokens:
            text, is_stopped = fresh, False
        else:
            result = self._stops.push(fresh)
            text, is_stopped = result.text, result.is_stopped
        if is_stopped:
            return text, "stop"
        if len(self.seq.token_ids) < self.seq.max_total_tokens:
            return text, None
        rest, is_stopped = self._last_text()
        return text + rest, "stop" if is_stopped else "length"

    def _last_text(self) -> tuple[str, bool]:
        """Everything held back, and whether it contains a stop string."""
        result = self._stops.push(self._detokenizer.flush())
        held = "" if result.is_stopped else self._stops.flush()
        return result.text + held, result.is_stopped

    def _logprobs(self, sampled: Sampled) -> tuple[TokenLogprob, ...] | None:
        if sampled.logprob is None:
            return None
        top = tuple(self._entry(token_id, logprob) for token_id, logprob in sampled.top)
        return (self._entry(sampled.token_id, sampled.logprob, top),)

    def _entry(
        self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
    ) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        return TokenLogprob(
            token=raw.decode("utf-8", errors="replace"),
            logprob=max(logprob, LOGPROB_FLOOR),
            bytes=tuple(raw),
            top=top,
        )
