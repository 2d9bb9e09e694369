"""The output parser: reasoning first, then content with tool calls in it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_engine.chat.call_deltas import new_call_id, salvaged
from llm_engine.chat.call_reader import CallReader, JsonCallReader, Read
from llm_engine.chat.families import ReasoningMarkers
from llm_engine.chat.formats import CallFormat
from llm_engine.chat.held import num_held
from llm_engine.chat.pair_reader import PairCallReader
from llm_engine.chat.state_parser import StateParser
from llm_engine.types import Tool

_LOG = logging.getLogger(__name__)
# What a call may begin with, behind its opener.
_BEGINNINGS = ("{", "[", "<")
ReasoningStart = Literal["open", "possible", "off"]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What to look for: reasoning from a state the prompt left, and calls of these tools."""

    reasoning: ReasoningMarkers | None = None
    start: ReasoningStart = "off"
    calls: CallFormat | None = None
    tools: tuple[Tool, ...] = ()
    needs_special_tokens: bool = False

    def shown_with(self, hidden_tokens: Sequence[str]) -> "OutputFormat":
        """The same, asking for special tokens in the text if a marker holds one of them."""
        texts = [] if self.reasoning is None else [self.reasoning.begin, self.reasoning.end]
        if self.calls is not None:
            form = self.calls
            texts += [*form.openers, form.section_begin, form.begin, form.finish, form.section_end]
        is_needed = any(token in text for token in hidden_tokens for text in texts)
        return replace(self, needs_special_tokens=is_needed)


class StreamParser(StateParser):
    """An `OutputParser` over one output format.

    White space around reasoning and between calls belongs to the markers. A call that cannot be
    read is delivered as content, and logged. Of a call that the answer's length cuts short, what
    came of its arguments is delivered, and the name alone where that is whole.
    """

    def __init__(self, form: OutputFormat, new_id: Callable[[], str] = new_call_id) -> None:
        """Stand at the beginning of the answer."""
        step = {"open": self._reasoning, "possible": self._begin, "off": self._content}[
            form.start if form.reasoning is not None else "off"
        ]
        super().__init__(step, new_id, needs_special_tokens=form.needs_special_tokens)
        self._form = form
        self._reader: CallReader | None = None
        self._opener = ""
        # At the beginning of a run of content its white space waits for what follows.
        self._is_leading = True
        self._drops_space = False
        self._is_first = True

    def _begin(self, is_last: bool) -> bool:
        """Whether the answer begins with reasoning."""
        assert self._form.reasoning is not None
        marker = self._form.reasoning.begin
        text = self._held.lstrip()
        if text.startswith(marker):
            self._held = text[len(marker) :]
            self._step = self._reasoning
        elif is_last or not marker.startswith(text):
            if is_last:
                num_chars = self._num_pending((marker,), is_last)
                self._held = self._held[: len(self._held) - num_chars]
            self._step = self._content
        else:
            return False
        return True

    def _reasoning(self, is_last: bool) -> bool:
        assert self._form.reasoning is not None
        marker = self._form.reasoning.end
        if self._is_leading:
            self._held = self._held.lstrip()
            self._is_leading = not self._held
        end = self._held.find(marker)
        if end >= 0:
            self._found.reasoning.append(self._held[:end].rstrip())
            self._held = self._held[end + len(marker) :]
            self._is_leading = self._drops_space = True
            self._step = self._content
            return True
        num_pending = self._num_pending((marker,), is_last)
        shown = self._held[: len(self._held) - num_pending]
        if num_pending or not is_last:
            shown = shown.rstrip()
        self._found.reasoning.append(shown)
        self._held = "" if is_last else self._held[len(shown) :]
        return False

    def _content(self, is_last: bool) -> bool:
        if self._is_leading and not self._leave_lead(is_last):
            return self._reader is not None
        form = self._form.calls
        openers = form.openers if form is not None and self._form.tools else ()
        found = [(at, opener) for opener in openers if (at := self._held.find(opener)) >= 0]
        if found:
            at, opener = min(found)
            self._found.content.append(self._held[:at])
            self._held = self._held[at + len(opener) :]
            self._open(opener)
            return True
        shown = self._held[: len(self._held) - self._num_pending(openers, is_last)]
        self._found.content.append(shown)
        self._held = "" if is_last else self._held[len(shown) :]
        return False

    def _leave_lead(self, is_last: bool) -> bool:
        """Decide on leading white space once it is known what follows; false to wait."""
        form = self._form.calls if self._form.tools else None
        text = self._held.lstrip()
        openers = form.openers if form is not None else ()
        if not text or any(opener != text and opener.startswith(text) for opener in openers):
            if not is_last:
                return False
            is_dropped = self._drops_space or (not text and self._num_calls > 0)
            self._held = text if is_dropped else self._held
            if self._is_cut and self._num_calls > 0:
                self._held = ""  # behind a call, even one character of an opener begins the next
        elif any(text.startswith(opener) for opener in openers):
            self._held = text
        elif form is not None and form.leads and self._is_first and text[0] == "{":
            space = self._held[: len(self._held) - len(text)]
            self._held = text
            self._open("" if self._drops_space else space)
            return False
        elif self._drops_space:
            self._held = text
        self._is_leading = self._is_first = False
        return True

    def _open(self, opener: str) -> None:
        assert self._form.calls is not None
        form, tools = self._form.calls, self._form.tools
        if form.style == "json":
            self._reader = JsonCallReader(form, tools, is_bare=opener not in form.openers)
        else:
            self._reader = PairCallReader(form, tools)
        self._opener = opener
        self._is_first = False
        self._step = self._call

    def _call(self, is_last: bool) -> bool:
        assert self._reader is not None
        read = self._reader.read(self._held, is_last=is_last and not self._is_cut)
        if is_last and self._is_cut and read.status == "wait":
            self._take(read)
            read = self._reader.cut(self._held)
        if read.status == "rejected":
            return self._give_back(is_last)
        self._take(read)
        if read.status == "done":
            self._leave_call()
        return read.status in ("more", "done")

    def _take(self, read: Read) -> None:
        if read.name is not None:
            self._begin_call(read.name)
        if read.arguments:
            self._extend_call(read.arguments)
        self._held = self._held[read.num_used :]

    def _leave_call(self) -> None:
        self._reader = None
        self._is_leading, self._drops_space = True, False
        self._step = self._content

    def _give_back(self, is_last: bool) -> bool:
        """What looked like a call becomes content, unless it is one in another order of keys."""
        assert self._form.calls is not None
        close = self._form.calls.close
        end = -1 if close is None else self._held.find(close)
        if end < 0 and close is not None and not is_last:
            return False
        if end < 0 and close is not None and self._is_cut:
            return self._give_back_cut(close)
        inner = self._held[:end] if end >= 0 else ""
        call = salvaged(inner, self._form.tools) if end >= 0 else None
        if call is not None:
            self._begin_call(*call)
            self._held = self._held[end + len(close or "") :]
            self._leave_call()
            return True
        self._show(len(inner) + len(close or "") if end >= 0 else 0)
        return True

    def _give_back_cut(self, close: str) -> bool:
        """The same for an answer that was cut short before the call's end."""
        inner = self._held[: len(self._held) - num_held(self._held, (close,))]
        call = salvaged(inner, self._form.tools)
        if call is None and inner.lstrip()[:1] not in _BEGINNINGS:
            self._show(len(self._held))
            return True
        if call is not None:
            self._begin_call(*call)
        else:
            _LOG.warning("a call that was cut short cannot be read: nothing of it is delivered")
        self._held = ""
        self._leave_call()
        return True

    def _show(self, num_chars: int) -> None:
        _LOG.warning("what the model wrote is no call of a tool on offer: delivered as content")
        self._found.content.append(self._opener + self._held[:num_chars])
        self._held = self._held[num_chars:]
        self._reader = None
        self._is_leading = False
        self._step = self._content
