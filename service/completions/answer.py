"""Events → the classic completion's shape, which is the same whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.completions.echo import echoed_prompt
from service.completions.logprobs import ClassicLogprobs
from service.generation.head import Head
from service.generation.turn import Json, usage
from service.http.stream import sse
from service.schemas.completions import CompletionBody
from workers.protocol import ChatDelta, ChatDone, PromptScored

_KIND = "text_completion"


@dataclass(slots=True)
class _Choice:
    index: int
    logprobs: ClassicLogprobs | None
    texts: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None

    def piece(self, text: str, logprobs: Json | None, reason: str | None) -> Json:
        """Keep more text; the choice of a chunk that holds this much alone."""
        self.texts.append(text)
        self.finish_reason = reason or self.finish_reason
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def whole(self) -> Json:
        return {
            "index": self.index,
            "text": "".join(self.texts),
            "logprobs": None if self.logprobs is None else self.logprobs.whole,
            "finish_reason": self.finish_reason or "stop",
        }


class CompletionShape:
    """The shape of a completion; choice `i` of prompt `p` has the index `p · n + i`.

    A position is that of a prompt. An echoed prompt comes first in each of its choices.
    """

    def __init__(self, head: Head, body: CompletionBody) -> None:
        """Start with what is known before any event: texts that are echoed as they came."""
        self._head = head
        self._body = body
        num = body.num_choices
        self._choices = [
            _Choice(index, None if body.logprobs is None else ClassicLogprobs(body.logprobs))
            for index in range(num * len(body.prompts))
        ]
        self._pending: list[Json] = []
        for choice in self._choices if body.echo else ():
            prompt = body.prompts[choice.index // num]
            if isinstance(prompt, str) and not body.needs_scores(prompt):
                self._pending.append(choice.piece(prompt, None, None))

    def add(self, position: int, event: ChatDelta | PromptScored) -> None:
        """Take in one event."""
        self._pieces(position, event)

    def finish(self, dones: Sequence[ChatDone]) -> Json:
        """The whole answer."""
        choices = [choice.whole() for choice in self._choices]
        return {**self._head.fields(_KIND), "choices": choices, "usage": self._usage(dones)}

    def first(self) -> list[Json]:
        """Echoed texts."""
        return [self._chunk(piece) for piece in self._pending]

    def lines(self, position: int, event: ChatDelta | PromptScored) -> list[bytes]:
        """The chunks of one event, each as a line of the stream."""
        return [sse(self._chunk(piece)) for piece in self._pieces(position, event)]

    def last(self, dones: Sequence[ChatDone]) -> list[Json]:
        """The usage chunk, if it was asked for."""
        if not self._body.has_usage_chunk:
            return []
        return [{**self._head.fields(_KIND), "choices": [], "usage": self._usage(dones)}]

    def _pieces(self, position: int, event: ChatDelta | PromptScored) -> list[Json]:
        first = position * self._body.num_choices
        if isinstance(event, PromptScored):
            ours = self._choices[first : first + self._body.num_choices]
            return [self._echo(choice, position, event) for choice in ours]
        choice = self._choices[first + event.index]
        reason = event.finish_reason
        if self._body.is_scoring:
            return [] if reason is None else [choice.piece("", None, "length")]
        logprobs = None
        if choice.logprobs is not None and event.logprobs:
            logprobs = choice.logprobs.add(event.logprobs)
        if not event.text and logprobs is None and reason is None:
            return []
        return [choice.piece(event.text, logprobs, reason)]

    def _echo(self, choice: _Choice, position: int, scored: PromptScored) -> Json:
        echoed = echoed_prompt(self._body.prompts[position], scored)
        if choice.logprobs is None:
            return choice.piece(echoed.text, None, None)
        one = choice.logprobs.add_first(echoed.first)
        rest = choice.logprobs.add([e for e in scored.logprobs if e is not None])
        both = {n: None if one[n] is None else [*one[n], *rest[n]] for n in one}
        return choice.piece(echoed.text, both, None)

    def _usage(self, dones: Sequence[ChatDone]) -> Json:
        if self._body.is_scoring:
            dones = [done.model_copy(update={"completion_tokens": 0}) for done in dones]
        return usage(dones)

    def _chunk(self, piece: Json) -> Json:
        chunk = {**self._head.fields(_KIND), "choices": [piece]}
        return chunk | {"usage": None} if self._body.has_usage_chunk else chunk
