"""A model's chat format: its template, what that knows, and a conversation put into it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from jinja2 import TemplateError

from llm_engine.chat.channels import ChannelMarkers, ChannelStart
from llm_engine.chat.families import Family, family_of
from llm_engine.chat.messages import check_roles, to_entries, tool_entry
from llm_engine.chat.plain_tools import without_tool_turns
from llm_engine.chat.single_calls import one_call_a_turn
from llm_engine.chat.stream_parser import ReasoningStart
from llm_engine.chat.template_renderer import compile_template
from llm_engine.errors import InvalidRequest
from llm_engine.types import ChatMessage, Tool

_RESERVED = frozenset({"add_generation_prompt", "messages", "tools"})
_PROBE = "\ue000probe\ue000"
# Where the text to be continued ends; the space tells whether the template trims.
_END_MARK = "\ue000end-of-the-message\ue000 "


class ChatFormat:
    """A template with the special tokens it may print. Safe to use from several threads."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        """Keep the source; it is compiled with the first conversation."""
        self._template = template
        self._special_tokens = special_tokens

    @cached_property
    def family(self) -> Family:
        """How this template's models call tools and reason."""
        has_tools = re.search(r"\btools\b", self._template) is not None
        return family_of(self._template, has_tools_variable=has_tools)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        options: Mapping[str, object] | None = None,
        continues_last: bool = False,
    ) -> str:
        """The prompt: up to the beginning of the answer, or of the rest of the last message.

        `options` are further variables of the template.
        Raises: InvalidRequest for an unknown role, for messages that the template refuses or
        loses, and for a last message that cannot be continued.
        """
        check_roles(messages)
        options = options or {}
        _check_options(options, self._special_tokens)
        plain = list(messages) if self.family.knows_tools else without_tool_turns(messages, tools)
        if self.family.channels is not None:
            plain = one_call_a_turn(plain)
        entries = to_entries(plain, self.family, knows_developer="developer" in self._template)
        if continues_last:
            _check_last(messages[-1])
            entries[-1]["content"] += _END_MARK
        variables: dict[str, object] = {**self._special_tokens, **options}
        if tools and self.family.knows_tools:
            variables["tools"] = [tool_entry(tool) for tool in tools]
        text = self._rendered(
            messages=entries, add_generation_prompt=not continues_last, **variables
        )
        if continues_last:
            text = _cut_at_mark(text)
        _check_nothing_lost(messages, text)
        return text

    def reasoning_start(
        self,
        messages: Sequence[ChatMessage],
        options: Mapping[str, object],
        *,
        continues_last: bool,
    ) -> ReasoningStart:
        """Whether the prompt leaves reasoning open, may see it begin, or has it switched off.

        Told by what the template writes after a user turn, or by the message to be continued;
        never by what a user wrote.
        """
        markers = self.family.reasoning
        if markers is None:
            return "off"
        tail = messages[-1].content if continues_last else self._opening(options)
        begin, end = tail.rfind(markers.begin), tail.rfind(markers.end)
        if begin > end:
            return "open"
        return "off" if continues_last or end >= 0 else "possible"

    def channel_start(
        self,
        channels: ChannelMarkers,
        options: Mapping[str, object],
        *,
        continues_last: bool,
    ) -> ChannelStart:
        """Where the prompt leaves an answer on channels; a continued message is the final one."""
        return "final" if continues_last else channels.opened_by(self._opening(options))

    def _opening(self, options: Mapping[str, object]) -> str:
        try:
            text = self.render([ChatMessage("user", _PROBE)], options=options)
        except InvalidRequest:
            return ""  # a template that wants more than a user turn says so for the real messages
        return text[text.rfind(_PROBE) + len(_PROBE) :]

    @cached_property
    def _render(self) -> Callable[..., str]:
        return compile_template(self._template)

    def _rendered(self, **variables: object) -> str:
        try:
            return self._render(**variables)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise _refusal(error) from error
        except (ArithmeticError, RecursionError, MemoryError) as error:
            raise _refusal(error) from error


def _refusal(error: BaseException) -> InvalidRequest:
    return InvalidRequest(
        f"the model's chat template refuses these messages: {error}", param="messages"
    )


def _check_options(options: Mapping[str, object], special_tokens: Mapping[str, str]) -> None:
    taken = sorted((_RESERVED | set(special_tokens)) & set(options))
    if taken:
        raise InvalidRequest(
            f"template_options holds {taken[0]!r}, which the request itself sets: leave it out",
            param="template_options",
        )


def _check_last(message: ChatMessage) -> None:
    if message.role != "assistant" or message.tool_calls:
        what = "a tool call" if message.tool_calls else f"of role {message.role!r}"
        raise InvalidRequest(
            f"continue_final_message is set, but the last message is {what}: let it be an "
            "assistant message with text, or leave the field out",
            param="continue_final_message",
        )


def _cut_at_mark(text: str) -> str:
    """Cut where the message ends; trim as the template trims."""
    at = text.rfind(_END_MARK.strip())
    if at < 0:
        raise InvalidRequest(
            "continue_final_message is set, but the model's chat template does not show the last "
            "message as it stands: leave the field out",
            param="continue_final_message",
        )
    is_kept = text.startswith(_END_MARK, at)
    return text[:at] if is_kept else text[:at].rstrip()


def _check_nothing_lost(messages: Sequence[ChatMessage], text: str) -> None:
    """A template must show tool results and the names of past calls, in one form or another."""
    for i, message in enumerate(messages):
        content = message.content.strip()
        if message.role == "tool" and not _stands_in(content, text):
            raise InvalidRequest(
                f"the model's chat template does not show messages[{i}], a tool's result: tell "
                "the result in a user message",
                param="messages",
            )
        for call in message.tool_calls:
            if call.name not in text:
                raise InvalidRequest(
                    f"the model's chat template does not show the call of {call.name!r} in "
                    f"messages[{i}]: tell it as text",
                    param="messages",
                )


def _stands_in(content: str, text: str) -> bool:
    if content in text:
        return True
    return any(json.dumps(content, ensure_ascii=ascii_)[1:-1] in text for ascii_ in (False, True))
