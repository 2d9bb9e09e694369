"""Tools for templates that have no place for them: described in the system text, told as text.

The form is the one that most open models have seen: schemas as JSON lines, calls between
`<tool_call>` tags, results between `<tool_response>` tags in a user turn.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from llm_engine.chat.messages import arguments_of, tool_entry
from llm_engine.types import ChatMessage, Tool

_INTRODUCTION = (
    "You may call these functions. Each line describes one as JSON:\n<tools>\n{tools}\n</tools>\n\n"
    "To call a function, answer with its name and arguments as JSON between these tags:\n"
    '<tool_call>\n{{"name": "the name", "arguments": {{"the argument": "its value"}}}}\n'
    "</tool_call>"
)


def without_tool_turns(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The same conversation in system, user and assistant turns alone.

    Raises: InvalidRequest for past calls whose arguments are no object.
    """
    told: list[ChatMessage] = []
    for i, message in enumerate(messages):
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if i > 0 and messages[i - 1].role == "tool":
                told[-1] = replace(told[-1], content=f"{told[-1].content}\n{text}")
            else:
                told.append(ChatMessage("user", text))
        elif message.tool_calls:
            told.append(_with_calls(i, message))
        else:
            told.append(message)
    return _introduced(told, tools) if tools else told


def _with_calls(index: int, message: ChatMessage) -> ChatMessage:
    texts = [message.content] if message.content else []
    for i, call in enumerate(message.tool_calls):
        arguments = arguments_of(call, f"messages[{index}].tool_calls[{i}]")
        body = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
        texts.append(f"<tool_call>\n{body}\n</tool_call>")
    return replace(message, content="\n".join(texts), tool_calls=())


def _introduced(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    lines = "\n".join(json.dumps(tool_entry(tool), ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines)
    first = messages[0]
    if first.role in ("system", "developer"):
        return [replace(first, content=f"{first.content}\n\n{text}"), *messages[1:]]
    return [ChatMessage("system", text), *messages]
