"""Chat events → OpenAI's two answer shapes: one object, or chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from service.errors import ApiError, BadRequest, EngineFailed, TooManyRequests, Unavailable
from workers.protocol import ChatDelta, ChatDone, ChatFailed, TokenLogprob

_BY_STATUS: dict[int, type[ApiError]] = {400: BadRequest, 429: TooManyRequests, 503: Unavailable}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every chunk of an answer has in common."""

    id: str
    created: int
    model: str


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None


class Answer:
    """Collects the events of an answer that is not streamed."""

    def __init__(self, head: Head, *, num_choices: int, has_logprobs: bool) -> None:
        """Start empty."""
        self._head = head
        self._has_logprobs = has_logprobs
        self._choices = [_Choice() for _ in range(num_choices)]

    def add(self, delta: ChatDelta) -> None:
        """Take in one event."""
        choice = self._choices[delta.index]
        choice.texts.append(delta.text)
        choice.logprobs += _logprobs(delta.logprobs or ())
        choice.finish_reason = delta.finish_reason or choice.finish_reason

    def finish(self, done: ChatDone) -> dict[str, Any]:
        """The whole answer."""
        return {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [self._choice(index) for index in range(len(self._choices))],
            "usage": usage(done),
        }

    def _choice(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        content = {"content": choice.logprobs, "refusal": None} if self._has_logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": content,
            "finish_reason": choice.finish_reason or "stop",
        }


class Chunks:
    """Makes the chunks of a streamed answer.

    Invariants: the role comes first for each choice; `usage` is on every chunk (null) or on none;
    the usage chunk, where asked for, has no choices and comes last.
    """

    def __init__(self, head: Head, *, num_choices: int, has_usage: bool) -> None:
        """Nothing has been sent yet."""
        self._head = head
        self._has_usage = has_usage
        self._num_choices = num_choices

    def first(self) -> list[dict[str, Any]]:
        """The roles, one chunk per choice."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(index, delta) for index in range(self._num_choices)]

    def of(self, delta: ChatDelta) -> list[dict[str, Any]]:
        """The chunks of one event: its text, then its end."""
        chunks: list[dict[str, Any]] = []
        if delta.text or delta.logprobs:
            logprobs = None
            if delta.logprobs is not None:
                logprobs = {"content": _logprobs(delta.logprobs), "refusal": None}
            chunks.append(self._chunk(delta.index, {"content": delta.text}, logprobs))
        if delta.finish_reason is not None:
            chunks.append(self._chunk(delta.index, {}, None, delta.finish_reason))
        return chunks

    def last(self, done: ChatDone) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        if not self._has_usage:
            return []
        return [{**self._base(), "choices": [], "usage": usage(done)}]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason,
        }  # fmt: skip
        chunk = {**self._base(), "choices": [choice]}
        return chunk | {"usage": None} if self._has_usage else chunk

    def _base(self) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "object": "chat.completion.chunk",
            "created": self._head.created,
            "model": self._head.model,
        }


def usage(done: ChatDone) -> dict[str, Any]:
    """Tokens of an answer, in OpenAI's shape."""
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }


def failure(event: ChatFailed) -> ApiError:
    """The worker's failure as an answer."""
    kind = _BY_STATUS.get(event.status, EngineFailed)
    return kind(event.message, param=event.param, code=event.code)


def _logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {**_logprob(token), "top_logprobs": [_logprob(other) for other in token.top]}
        for token in tokens
    ]


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.bytes)}
