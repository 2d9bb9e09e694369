"""The output parser of answers on channels: thoughts, content and calls by their headers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_engine.chat.call_deltas import joined, new_call_id
from llm_engine.chat.channels import ChannelMarkers, ChannelStart
from llm_engine.chat.parser import ParsedText
from llm_engine.chat.state_parser import StateParser
from llm_engine.types import Tool

_LOG = logging.getLogger(__name__)
# What is longer is no header; a function's name has at most 64 characters.
_MAX_HEADER = 256
_Target = Literal["reasoning", "content", "call"]


@dataclass(frozen=True, slots=True)
class ChannelOutput:
    """What to look for: the markers, where the prompt left the answer, the tools on offer."""

    markers: ChannelMarkers
    start: ChannelStart = "header"
    tools: tuple[Tool, ...] = ()
    needs_special_tokens: bool = False

    def shown_with(self, hidden_tokens: Sequence[str]) -> "ChannelOutput":
        """The same, asking for special tokens in the text if a marker is one of them."""
        is_needed = any(text in hidden_tokens for text in self.markers.texts)
        return replace(self, needs_special_tokens=is_needed)


class ChannelParser(StateParser):
    """An `OutputParser` of messages on channels.

    The analysis channel is reasoning, a message to a tool on offer is a call, all else is content;
    one line break stands between what two messages add to the same. Text outside of messages is
    content. A header that the answer's end cuts short is dropped, and so is a marker that its
    length cuts short.
    """

    def __init__(self, form: ChannelOutput, new_id: Callable[[], str] = new_call_id) -> None:
        """Stand where the prompt left the answer."""
        step = self._opening if form.start == "header" else self._message
        super().__init__(step, new_id, needs_special_tokens=form.needs_special_tokens)
        self._markers = form.markers
        self._names = frozenset(tool.name for tool in form.tools)
        self._target: _Target = "reasoning" if form.start == "analysis" else "content"
        self._is_fresh = True  # nothing of this message was handed on yet
        self._has_text: dict[_Target, bool] = {"reasoning": False, "content": False}

    def flush(self, *, is_cut: bool = False) -> ParsedText:
        """Everything held back, once it is known that nothing follows."""
        parsed = super().flush(is_cut=is_cut)
        if self._step != self._message:
            return parsed
        if is_cut:
            self._step = self._between  # arguments end where they are
            return parsed
        self._end_message()
        closing = self._run(is_last=True)
        return replace(parsed, tool_calls=joined((*parsed.tool_calls, *closing.tool_calls)))

    def _opening(self, is_last: bool) -> bool:
        """Behind the role that the prompt ends with: the rest of a header, or mere text."""
        marks = self._markers
        text = self._held.lstrip()
        begins = (marks.channel, marks.constrain, marks.message, "to=")
        if any(text.startswith(begin) for begin in begins):
            self._step = self._header
        elif is_last or not _may_become(text, begins):
            self._step = self._message
        else:
            return False
        return True

    def _header(self, is_last: bool) -> bool:
        marker = self._markers.message
        end = self._held.find(marker, 0, _MAX_HEADER + len(marker))
        if end >= 0:
            self._begin_message(self._held[:end])
            self._held = self._held[end + len(marker) :]
            return True
        if len(self._held) >= _MAX_HEADER + len(marker):
            _LOG.warning("the model's message has no proper header: delivered as content")
            self._begin("content")
            self._emit(self._held[:_MAX_HEADER])
            self._held = self._held[_MAX_HEADER:]
            return True
        if is_last:
            self._held, self._step = "", self._between
        return False

    def _begin_message(self, text: str) -> None:
        header = self._markers.header(text)
        name = (header.recipient or "").removeprefix(self._markers.namespace)
        if name in self._names:
            self._begin("call")
            self._begin_call(name)
            return
        if header.recipient is not None:
            _LOG.warning("the model wrote to %r, which is no tool on offer", header.recipient)
        self._begin("reasoning" if header.channel == self._markers.thoughts else "content")

    def _begin(self, target: _Target) -> None:
        self._target, self._is_fresh = target, True
        self._step = self._message

    def _message(self, is_last: bool) -> bool:
        """Text up to the end of the message; one without an end is over where a header begins."""
        marks = self._markers
        ends = (marks.end, marks.finish, marks.call)
        begins = (marks.start, marks.channel)
        found = [(at, m) for m in (*ends, *begins) if (at := self._held.find(m)) >= 0]
        if found:
            at, marker = min(found)
            self._emit(self._held[:at])
            self._held = self._held[at + (len(marker) if marker in ends else 0) :]
            self._end_message()
            return True
        shown = self._held[: len(self._held) - self._num_pending((*ends, *begins), is_last)]
        self._emit(shown)
        self._held = "" if is_last else self._held[len(shown) :]
        return False

    def _end_message(self) -> None:
        if self._target == "call" and self._is_fresh:
            self._emit("{}")  # a call without a word is one without arguments
        self._step = self._between

    def _between(self, is_last: bool) -> bool:
        """Between messages white space is nobody's, and other text content."""
        marks = self._markers
        text = self._held.lstrip()
        if text.startswith(marks.start):
            self._held, self._step = text[len(marks.start) :], self._header
            return True
        if text.startswith(marks.channel):
            self._held, self._step = text, self._header
            return True
        if text and (is_last or not _may_become(text, (marks.start, marks.channel))):
            self._held = text
            self._begin("content")
            return True
        if is_last:
            self._held = ""
        return False

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._target == "call":
            self._extend_call(text)
        else:
            is_joined = self._is_fresh and self._has_text[self._target]
            parts = self._found.reasoning if self._target == "reasoning" else self._found.content
            parts.append(f"\n{text}" if is_joined else text)
            self._has_text[self._target] = True
        self._is_fresh = False


def _may_become(text: str, markers: Sequence[str]) -> bool:
    return any(marker.startswith(text) for marker in markers)
