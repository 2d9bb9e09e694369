"""Small parts of reading calls: ids, joining pieces, and calls in an unusual form."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, cast

from llm_engine.types import Tool, ToolCallDelta


def new_call_id() -> str:
    """A fresh id for a call."""
    return f"call_{secrets.token_hex(12)}"


def salvaged(text: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
    """A JSON call whose keys stand in another order, or whose arguments are text or missing."""
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    call = cast(dict[str, Any], parsed)
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if name not in {tool.name for tool in tools}:
        return None
    if arguments is None:
        return name, "{}"
    if isinstance(arguments, str):
        return name, arguments
    return name, json.dumps(arguments, ensure_ascii=False)


def joined(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Neighbouring pieces of one call as one."""
    joined: list[ToolCallDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if last is not None and last.index == delta.index and delta.id is None:
            arguments = last.arguments + delta.arguments
            joined[-1] = ToolCallDelta(last.index, last.id, last.name, arguments)
        else:
            joined.append(delta)
    return tuple(joined)
