"""Past turns for templates that show one call a turn, each followed by its result."""

from collections.abc import Sequence
from dataclasses import replace

from llm_engine.types import ChatMessage, ToolCall


def one_call_a_turn(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same conversation with every call in a turn of its own, its results behind it.

    Such templates take either words or thoughts beside a call: words join the thoughts.
    """
    told: list[ChatMessage] = []
    i = 0
    while i < len(messages):
        message = messages[i]
        i += 1
        if not message.tool_calls:
            told.append(message)
            continue
        results: list[ChatMessage] = []
        while i < len(messages) and messages[i].role == "tool":
            results.append(messages[i])
            i += 1
        told += _turns(_with_thoughts(message), results)
    return told


def _turns(message: ChatMessage, results: list[ChatMessage]) -> list[ChatMessage]:
    """A turn for each call; a result that belongs to none stays behind the last."""
    *earlier, last = message.tool_calls
    turns: list[ChatMessage] = []
    for call in earlier:
        found = [result for result in results if result.tool_call_id == call.id]
        results = [result for result in results if result.tool_call_id != call.id]
        turns += [_turn(message, call, is_first=not turns), *found]
    return [*turns, _turn(message, last, is_first=not turns), *results]


def _turn(message: ChatMessage, call: ToolCall, *, is_first: bool) -> ChatMessage:
    if is_first:
        return replace(message, tool_calls=(call,))
    return replace(message, content="", reasoning=None, tool_calls=(call,))


def _with_thoughts(message: ChatMessage) -> ChatMessage:
    if not message.content or not message.reasoning:
        return message
    return replace(message, content="", reasoning=f"{message.reasoning}\n{message.content}")
