"""Messages put into the form the model's chat template expects."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from llm_engine.chat.families import Family
from llm_engine.errors import InvalidRequest
from llm_engine.types import ChatMessage, Tool, ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool")
Entry = dict[str, Any]


def check_roles(messages: Sequence[ChatMessage]) -> None:
    """Raises: InvalidRequest for a role nobody knows."""
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequest(
                f"messages[{i}].role is {message.role!r}, must be one of {', '.join(ROLES)}",
                param="messages",
            )


def to_entries(
    messages: Sequence[ChatMessage], family: Family, *, knows_developer: bool
) -> list[Entry]:
    """What a template with a place for tools is given.

    Where it knows no developer role, that becomes system; system messages that then stand
    together at the beginning are merged into one.
    Raises: InvalidRequest for an unknown role, and for past calls whose arguments are no object.
    """
    check_roles(messages)
    entries = [_to_entry(i, message, family) for i, message in enumerate(messages)]
    if knows_developer or not any(entry["role"] == "developer" for entry in entries):
        return entries
    for entry in entries:
        if entry["role"] == "developer":
            entry["role"] = "system"
    return _merge_leading_system(entries)


def tool_entry(tool: Tool) -> Entry:
    """A tool as templates know it."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": json.loads(tool.parameters),
        },
    }


def short_id(call_id: str) -> str:
    """An id of nine letters and digits, the same for the same id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def arguments_of(call: ToolCall, where: str) -> Mapping[str, Any]:
    """A past call's arguments. Raises: InvalidRequest unless they are a JSON object."""
    try:
        parsed: object = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequest(
            f"{where}.function.arguments is no JSON object, as of an answer that its length cut "
            "short: leave that call out",
            param="messages",
        )
    return cast(dict[str, Any], parsed)


def _to_entry(index: int, message: ChatMessage, family: Family) -> Entry:
    entry: Entry = {"role": message.role, "content": message.content}
    if message.name is not None:
        entry["name"] = message.name
    if message.reasoning is not None:
        key = "reasoning_content" if family.channels is None else "thinking"
        entry[key] = message.reasoning
    if message.tool_call_id is not None:
        entry["tool_call_id"] = _id(message.tool_call_id, family)
    if message.tool_calls:
        entry["tool_calls"] = [
            _call_entry(call, f"messages[{index}].tool_calls[{i}]", family)
            for i, call in enumerate(message.tool_calls)
        ]
    return entry


def _call_entry(call: ToolCall, where: str, family: Family) -> Entry:
    parsed = arguments_of(call, where)
    return {
        "id": _id(call.id, family),
        "type": "function",
        "function": {
            "name": call.name,
            "arguments": (call.arguments or "{}") if family.arguments_as_text else parsed,
        },
    }


def _id(call_id: str, family: Family) -> str:
    return short_id(call_id) if family.short_ids else call_id


def _merge_leading_system(entries: list[Entry]) -> list[Entry]:
    num_leading = 0
    while num_leading < len(entries) and entries[num_leading]["role"] == "system":
        num_leading += 1
    if num_leading < 2:
        return entries
    content = "\n\n".join(entry["content"] for entry in entries[:num_leading])
    return [{"role": "system", "content": content}, *entries[num_leading:]]
