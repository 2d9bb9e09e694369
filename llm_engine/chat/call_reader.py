"""Reading the inside of a tool call, piece by piece, where the arguments are JSON."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import regex

from llm_engine.chat.formats import CallFormat
from llm_engine.chat.json_span import JsonSpan
from llm_engine.types import Tool

_LOG = logging.getLogger(__name__)
_NAME_BEGUN = regex.compile(r'"name"\s*:\s*"([^"\\]+)$')
Status = Literal["more", "wait", "done", "rejected"]


@dataclass(frozen=True, slots=True)
class Read:
    """What was found at the beginning of the text held.

    `name` begins a call, `arguments` continue it. `more` asks for another look at once, `wait` for
    more text, `done` ends the call or section, `rejected` says that no call stands here.
    """

    status: Status
    num_used: int = 0
    name: str | None = None
    arguments: str = ""


class CallReader(Protocol):
    """Reads from behind the opener of a call or section to its end."""

    def read(self, text: str, *, is_last: bool) -> Read:
        """Look at the text held; `is_last` when none will follow."""
        ...

    def cut(self, text: str) -> Read:
        """What the text held adds, where an answer that was cut short ends with it.

        Arguments as far as they came, and a name that is whole; the rest is markup.
        """
        ...


class JsonCallReader:
    """Head, arguments, tail; then, inside a section, the next call or the end."""

    def __init__(self, form: CallFormat, tools: Sequence[Tool], *, is_bare: bool = False) -> None:
        """Stand behind the opener; `is_bare` where there was none."""
        self._form = form
        self._is_bare = is_bare
        self._names = frozenset(tool.name for tool in tools)
        self._span = JsonSpan()
        self._phase = self._head

    def read(self, text: str, *, is_last: bool) -> Read:
        """Look at the text held; `is_last` when none will follow."""
        return self._phase(text, is_last)

    def cut(self, text: str) -> Read:
        """What the text held adds, where an answer that was cut short ends with it."""
        if self._phase not in (self._head, self._between):
            return Read("done", len(text))
        name = whole_name(self._form, text)
        if name in self._names:
            return Read("done", len(text), name=name)
        # At the beginning of an answer without an opener it may as well be any JSON.
        may_be_json = self._is_bare and self._phase == self._head
        is_call = not may_be_json or (name is None and self._names_one(text))
        return Read("done", len(text)) if is_call else Read("rejected")

    def _names_one(self, text: str) -> bool:
        found = _NAME_BEGUN.search(text)
        return found is not None and any(name.startswith(found[1]) for name in self._names)

    def _head(self, text: str, is_last: bool) -> Read:
        found = self._form.head.match(text, partial=True)
        if found is not None and found.partial and not is_last:
            return Read("wait")
        if found is None or found.partial or found["name"] not in self._names:
            return Read("rejected")
        return self._begin(found)

    def _begin(self, found: "regex.Match[str]") -> Read:
        self._phase, self._span = self._arguments, JsonSpan()
        return Read("more", found.start("args"), name=found["name"])

    def _arguments(self, text: str, is_last: bool) -> Read:
        num_used = self._span.take(text)
        if not self._span.is_done:
            return Read("wait", num_used, arguments=text)
        if self._span.is_broken:
            _LOG.warning("the model's tool call has broken JSON as its arguments")
        self._phase = self._tail
        return Read("more", num_used, arguments=text[:num_used])

    def _tail(self, text: str, is_last: bool) -> Read:
        found = self._form.tail.match(text, partial=True)
        if found is None:
            _LOG.warning("the model's tool call has no proper end")
            return Read("done")
        if found.partial:
            return Read("done", len(text)) if is_last else Read("wait")
        if not self._form.is_section:
            return Read("done", found.end())
        self._phase = self._between
        return Read("more", found.end())

    def _between(self, text: str, is_last: bool) -> Read:
        end = None if self._form.end is None else self._form.end.match(text, partial=True)
        if end is not None and not end.partial:
            return Read("done", end.end())
        head = self._form.head.match(text, partial=True)
        if head is not None and not head.partial and head["name"] in self._names:
            return self._begin(head)
        is_open = (end is not None) or (head is not None and head.partial)
        return Read("wait") if is_open and not is_last else Read("done")


def whole_name(form: CallFormat, text: str) -> str | None:
    """The function's name in the head of a call that is cut short, once it cannot go on."""
    found = form.head.match(text, partial=True)
    return None if found is None else found["name"]
