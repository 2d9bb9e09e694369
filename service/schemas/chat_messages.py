"""The turns of a conversation, as they come and as a worker reads them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from service.errors import BadRequest
from service.http.json_values import as_list, as_object
from service.schemas.chat_tools import MAX_TOOLS
from service.schemas.strict import NAME, Body, Text
from workers.protocol import ChatMessage, ToolCall

Role = Literal["system", "developer", "user", "assistant", "tool"]
_Id = Annotated[Text, Field(min_length=1, max_length=256)]


def _as_parts(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        return None
    parts = as_list(content)
    if parts is None:
        raise ValueError("must be a string or a list of text parts")
    return [_as_text_part(part) for part in parts]


def _as_text_part(part: object) -> object:
    """What a model said instead of an answer, a refusal, is read as its text."""
    members = as_object(part) or {}
    if members.get("type") != "refusal":
        return part
    return {"type": "text", "text": members.get("refusal")}


class TextPart(Body):
    """A piece of text in a message."""

    type: Literal["text"]
    text: Text


class CalledFunction(Body):
    """Which function was called, with arguments as JSON text."""

    name: str = Field(pattern=NAME)
    arguments: Text


class MadeCall(Body):
    """A call that an earlier answer made."""

    id: _Id
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One turn: a string, or a list of text parts that are joined as they stand.

    An assistant's turn may hold calls instead of content; a tool's turn answers one by its id.
    """

    role: Role
    content: Annotated[list[TextPart] | None, BeforeValidator(_as_parts)] = None
    name: Text | None = Field(default=None, max_length=256)
    tool_calls: list[MadeCall] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_call_id: _Id | None = None
    reasoning_content: Text | None = None


def to_messages(messages: list[Message]) -> tuple[ChatMessage, ...]:
    """The turns as a worker reads them.

    Raises: BadRequest naming the turn that lacks something.
    """
    return tuple(_to_message(place, message) for place, message in enumerate(messages))


def _to_message(place: int, message: Message) -> ChatMessage:
    where = f"messages.{place}"
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(f"{where}.tool_calls: only assistants call.", param=f"{where}.tool_calls")
    if message.role == "tool" and message.tool_call_id is None:
        raise BadRequest(
            f"{where}.tool_call_id is required: which call does this answer?",
            param=f"{where}.tool_call_id",
        )
    if message.content is None and not message.tool_calls:
        raise BadRequest(
            f"{where}.content is required, unless an assistant's message has tool_calls.",
            param=f"{where}.content",
        )
    return ChatMessage(
        role=message.role,
        content="".join(part.text for part in message.content or ()),
        name=message.name,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content,
    )
