"""Functions that a chat may call, and how its caller lets it choose among them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.errors import BadRequest, shown
from service.http.json_values import as_list, as_object
from service.schemas.json_schemas import schema_text
from service.schemas.strict import NAME, Body, Text
from workers.protocol import ChatTool, ChatToolUse

MAX_TOOLS = 128
_MAX_DESCRIPTION_CHARS = 16 * 2**10
# What OpenAI makes of a function without `parameters`: its list of them is empty.
_NO_PARAMETERS: dict[str, Any] = {
    "type": "object", "properties": {}, "additionalProperties": False,
}  # fmt: skip


class FunctionTool(Body):
    """A function: its name, what it does, and the JSON schema of its arguments.

    Without `parameters` it takes none.
    """

    name: str = Field(pattern=NAME)
    description: Text | None = Field(default=None, max_length=_MAX_DESCRIPTION_CHARS)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionTool


def tool_use(
    definitions: list[ToolDefinition] | None, choice: object, parallel: bool | None
) -> ChatToolUse | None:
    """The functions on offer, as the engine takes them; None where there are none.

    Raises: BadRequest for a choice that does not fit the tools.
    """
    if not definitions:
        if choice not in (None, "none", "auto"):
            raise BadRequest(
                "tool_choice asks for a call, but tools is empty: give tools, or leave it out.",
                param="tool_choice",
            )
        return None
    tools = {tool.name: tool for tool in map(_tool, range(len(definitions)), definitions)}
    if len(tools) < len(definitions):
        raise BadRequest("Two tools have the same name; names must differ.", param="tools")
    mode, name, allowed = _choice(choice, tools)
    return ChatToolUse(
        tools=tuple(tool for tool in tools.values() if tool.name in allowed),
        mode=mode,
        name=name,
        parallel=parallel is not False,
    )


def _tool(place: int, definition: ToolDefinition) -> ChatTool:
    function = definition.function
    parameters = function.parameters or _NO_PARAMETERS
    return ChatTool(
        name=function.name,
        description=function.description or "",
        parameters=schema_text(parameters, f"tools.{place}.function.parameters"),
        strict=bool(function.strict),
    )


_Choice = tuple[Literal["none", "auto", "required"], str | None, set[str]]


def _choice(choice: object, tools: dict[str, ChatTool]) -> _Choice:
    """The mode, the forced name, and the names on offer."""
    match choice:
        case None:
            return "auto", None, set(tools)
        case "none":
            return "none", None, set(tools)
        case "auto":
            return "auto", None, set(tools)
        case "required":
            return "required", None, set(tools)
        case _:
            asked = as_object(choice) or {}
    if asked.get("type") == "function":
        name = _known(_name_of(asked), tools, "tool_choice.function.name")
        return "required", name, set(tools)
    if asked.get("type") == "allowed_tools":
        return _allowed(as_object(asked.get("allowed_tools")) or {}, tools)
    raise BadRequest(
        f"tool_choice is {shown(choice)}; it may be none, auto, required, a function, or "
        "allowed_tools.",
        param="tool_choice",
    )


def _allowed(asked: dict[str, Any], tools: dict[str, ChatTool]) -> _Choice:
    param = "tool_choice.allowed_tools"
    mode = asked.get("mode")
    if mode not in ("auto", "required"):
        raise BadRequest(f"{param}.mode is {shown(mode)}; it may be auto or required.", param=param)
    entries = as_list(asked.get("tools")) or []
    names = {_known(_name_of(as_object(entry) or {}), tools, param) for entry in entries}
    if not names:
        raise BadRequest(f"{param}.tools is empty; name at least one tool.", param=param)
    return mode, None, names


def _name_of(asked: dict[str, Any]) -> object:
    return (as_object(asked.get("function")) or {}).get("name")


def _known(name: object, tools: dict[str, ChatTool], param: str) -> str:
    if not isinstance(name, str) or name not in tools:
        listed = ", ".join(tools)
        raise BadRequest(f"{param} is {shown(name)}; tools holds {listed}.", param=param)
    return name
