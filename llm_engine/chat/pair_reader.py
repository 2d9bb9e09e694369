"""Reading tool calls whose arguments stand between tags, and writing them as JSON."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import regex

from llm_engine.chat.call_reader import Read, whole_name
from llm_engine.chat.formats import CallFormat
from llm_engine.chat.held import num_held
from llm_engine.types import Tool

_LOG = logging.getLogger(__name__)
_KEYS = {
    "xml": regex.compile(r"\s*<parameter=(?P<key>[^>\n]+)>"),
    "pairs": regex.compile(r"\s*<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>"),
}
_JSON_BEGINS = tuple('[{"-0123456789tfn')
_CLOSE = {"xml": "</parameter>", "pairs": "</arg_value>"}


class PairCallReader:
    """A name, then keys with values; a string where the tool's schema has one, else JSON.

    Strings are handed on as they grow, other values when they are complete.
    """

    def __init__(self, form: CallFormat, tools: Sequence[Tool]) -> None:
        """Stand behind the opener."""
        self._form = form
        self._key_pattern = _KEYS[form.style]
        self._close = _CLOSE[form.style]
        # One line break on either side of a value belongs to the tags.
        self._has_breaks = form.style == "xml"
        self._tools = {tool.name: tool for tool in tools}
        self._properties: Mapping[str, Any] = {}
        self._num_pairs = 0
        self._is_string = False
        self._is_at_break = False
        self._phase = self._head

    def read(self, text: str, *, is_last: bool) -> Read:
        """Look at the text held; `is_last` when none will follow."""
        return self._phase(text, is_last)

    def cut(self, text: str) -> Read:
        """What the text held adds, where an answer that was cut short ends with it."""
        name = whole_name(self._form, text) if self._phase == self._head else None
        if name is not None and name in self._tools:
            return Read("done", len(text), name=name)
        is_json = self._phase == self._value and not self._is_string and text[:1] in _JSON_BEGINS
        return Read("done", len(text), arguments=self._without_close(text) if is_json else "")

    def _without_close(self, text: str) -> str:
        return text[: len(text) - num_held(text, (self._close, f"\n{self._close}"))]

    def _head(self, text: str, is_last: bool) -> Read:
        found = self._form.head.match(text, partial=True)
        if found is not None and found.partial and not is_last:
            return Read("wait")
        if found is None or found.partial or found["name"] not in self._tools:
            return Read("rejected")
        self._properties = _properties(self._tools[found["name"]])
        self._phase = self._key
        return Read("more", found.end(), name=found["name"], arguments="{")

    def _key(self, text: str, is_last: bool) -> Read:
        tail = self._form.tail.match(text, partial=True)
        if tail is not None and not tail.partial:
            return Read("done", tail.end(), arguments="}")
        found = self._key_pattern.match(text, partial=True)
        if found is not None and not found.partial:
            return self._begin_value(found["key"], found.end())
        if tail is None and found is None:
            _LOG.warning("the model's tool call has no proper end")
            return Read("done", arguments="}")
        return Read("done", len(text)) if is_last else Read("wait")

    def _begin_value(self, key: str, num_used: int) -> Read:
        schema = self._properties.get(key)
        self._is_string = isinstance(schema, dict) and _is_text(cast(dict[str, Any], schema))
        self._is_at_break = self._has_breaks
        self._phase = self._value
        comma = ", " if self._num_pairs else ""
        self._num_pairs += 1
        quote = '"' if self._is_string else ""
        return Read("more", num_used, arguments=f"{comma}{json.dumps(key)}: {quote}")

    def _value(self, text: str, is_last: bool) -> Read:
        if self._is_at_break and text:
            self._is_at_break = False
            if text[0] == "\n":
                return Read("more", 1)
        end = text.find(self._close)
        if end >= 0:
            self._phase = self._key
            value = text[:end].removesuffix("\n") if self._has_breaks else text[:end]
            return Read("more", end + len(self._close), arguments=self._whole(value))
        if is_last:
            return Read("done", len(text), arguments=_escaped(text) if self._is_string else text)
        if not self._is_string:
            return Read("wait")
        shown = self._without_close(text)
        return Read("wait", len(shown), arguments=_escaped(shown))

    def _whole(self, value: str) -> str:
        if self._is_string:
            return _escaped(value) + '"'
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return json.dumps(value, ensure_ascii=False)
        return value.strip()


def _properties(tool: Tool) -> Mapping[str, Any]:
    schema: object = json.loads(tool.parameters)
    found: object = cast(dict[str, Any], schema).get("properties") if schema else None
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
