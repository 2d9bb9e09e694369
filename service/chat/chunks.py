"""The chunks of a streamed chat answer."""

from __future__ import annotations

from collections.abc import Sequence

from service.chat.tokens import logprob_entries
from service.generation.head import Head
from service.generation.joining import is_plain
from service.generation.text_line import TextLine
from service.generation.turn import Json, usage
from service.http.stream import sse
from workers.protocol import ChatDelta, ChatDone, ToolCallDelta


class Chunks:
    """Makes the chunks of a streamed answer.

    Invariants: the role comes first for each choice; a call's id and name come once; `usage` is
    on every chunk (null) or on none; the usage chunk, where asked for, has no choices, comes last.
    """

    def __init__(self, head: Head, *, num_choices: int, has_usage: bool) -> None:
        """Nothing has been sent yet."""
        self._base = head.fields("chat.completion.chunk")
        self._has_usage = has_usage
        self._num_choices = num_choices
        self._has_called: set[int] = set()
        self._texts: dict[int, TextLine] = {}

    def first(self) -> list[Json]:
        """The roles, one chunk per choice."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(index, delta) for index in range(self._num_choices)]

    def lines(self, delta: ChatDelta) -> list[bytes]:
        """The chunks of one event as lines; plain text, the common case, fills a prepared one."""
        if not delta.text or not is_plain(delta):
            return [sse(chunk) for chunk in self._of(delta)]
        index = delta.index
        if index not in self._texts:
            self._texts[index] = TextLine(lambda text: self._chunk(index, {"content": text}))
        return [self._texts[index].fill(delta.text)]

    def _of(self, delta: ChatDelta) -> list[Json]:
        """The chunks of one event: reasoning, text, calls, then its end."""
        index = delta.index
        chunks: list[Json] = []
        if delta.reasoning:
            chunks.append(self._chunk(index, {"reasoning_content": delta.reasoning}))
        if delta.text or delta.logprobs:
            logprobs = None
            if delta.logprobs is not None:
                logprobs = {"content": logprob_entries(delta.logprobs), "refusal": None}
            chunks.append(self._chunk(index, {"content": delta.text}, logprobs))
        if delta.tool_calls:
            self._has_called.add(index)
            chunks.append(self._chunk(index, {"tool_calls": [*map(_call, delta.tool_calls)]}))
        reason = delta.finish_reason
        if reason is not None:
            if reason == "tool_calls" and index not in self._has_called:
                reason = "stop"
            chunks.append(self._chunk(index, {}, None, reason))
        return chunks

    def last(self, dones: Sequence[ChatDone]) -> list[Json]:
        """The usage chunk, if it was asked for."""
        if not self._has_usage:
            return []
        return [{**self._base, "choices": [], "usage": usage(dones)}]

    def _chunk(
        self,
        index: int,
        delta: Json,
        logprobs: Json | None = None,
        finish_reason: str | None = None,
    ) -> Json:
        choice = {
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason,
        }  # fmt: skip
        chunk = {**self._base, "choices": [choice]}
        return chunk | {"usage": None} if self._has_usage else chunk


def _call(call: ToolCallDelta) -> Json:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
