"""Chat events → OpenAI's two answer shapes: one object, or chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from service.chat.chunks import Chunks
from service.chat.tokens import logprob_entries
from service.generation.head import Head
from service.generation.turn import Json, usage
from workers.protocol import ChatDelta, ChatDone, PromptScored, ToolCallDelta


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def add(self, delta: ToolCallDelta) -> None:
        self.id = delta.id or self.id
        self.name = delta.name or self.name
        self.arguments.append(delta.arguments)


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: dict[int, _Call] = field(default_factory=dict[int, _Call])
    logprobs: list[Json] = field(default_factory=list[Json])
    finish_reason: str | None = None

    def add(self, delta: ChatDelta) -> None:
        self.texts.append(delta.text)
        self.reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            self.calls.setdefault(call.index, _Call()).add(call)
        self.logprobs += logprob_entries(delta.logprobs or ())
        self.finish_reason = delta.finish_reason or self.finish_reason

    def message(self) -> Json:
        text = "".join(self.texts)
        message: Json = {
            "role": "assistant",
            "content": None if self.calls and not text else text,
            "refusal": None,
        }
        if reasoning := "".join(self.reasoning):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for _, call in sorted(self.calls.items())
            ]
        return message


class ChatShape:
    """The shape of one chat answer; its one engine request has position 0."""

    def __init__(
        self,
        head: Head,
        *,
        num_choices: int,
        has_logprobs: bool,
        has_usage: bool,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Start empty; `has_usage` asks for the usage chunk of a stream."""
        self._head = head
        self._has_logprobs = has_logprobs
        self._metadata = metadata
        self._choices = [_Choice() for _ in range(num_choices)]
        self._chunks = Chunks(head, num_choices=num_choices, has_usage=has_usage)

    def add(self, position: int, event: ChatDelta | PromptScored) -> None:
        """Take in one event."""
        del position
        if isinstance(event, ChatDelta):
            self._choices[event.index].add(event)

    def finish(self, dones: Sequence[ChatDone]) -> Json:
        """The whole answer."""
        answer: Json = {
            **self._head.fields("chat.completion"),
            "choices": [self._choice(index) for index in range(len(self._choices))],
            "usage": usage(dones),
        }
        return answer | {"metadata": self._metadata} if self._metadata else answer

    def first(self) -> list[Json]:
        """The roles, one chunk per choice."""
        return self._chunks.first()

    def lines(self, position: int, event: ChatDelta | PromptScored) -> list[bytes]:
        """The chunks of one event, each as a line of the stream."""
        del position
        return self._chunks.lines(event) if isinstance(event, ChatDelta) else []

    def last(self, dones: Sequence[ChatDone]) -> list[Json]:
        """The usage chunk, if it was asked for."""
        return self._chunks.last(dones)

    def _choice(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        reason = choice.finish_reason or "stop"
        return {
            "index": index,
            "message": choice.message(),
            "logprobs": {"content": choice.logprobs, "refusal": None}
            if self._has_logprobs
            else None,
            # A call that was never made is no reason to run one.
            "finish_reason": "stop" if reason == "tool_calls" and not choice.calls else reason,
        }
