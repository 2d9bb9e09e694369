"""Asking for chats and completions, and reading what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx
from gateway_kit import LLM, Script

from workers.protocol import ChatDelta, ChatDone, TokenLogprob, ToolCallDelta

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def user(text: str = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


async def chat(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post(CHAT, json={"model": LLM, "messages": [user()], **fields})


async def complete(http: httpx.AsyncClient, prompt: Any = "Once", **fields: Any) -> httpx.Response:
    return await http.post(COMPLETIONS, json={"model": LLM, "prompt": prompt, **fields})


def chunks_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event of a stream that ends properly."""
    assert answer.status_code == 200, answer.text
    events = [block for block in answer.text.split("\n\n") if block and not block.startswith(":")]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def choices_of(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]


def joined(chunks: list[dict[str, Any]], name: str = "content", index: int = 0) -> str:
    """One field of the deltas of a choice, joined."""
    return "".join(c["delta"].get(name) or "" for c in choices_of(chunks, index))


def finish_of(chunks: list[dict[str, Any]], index: int = 0) -> str | None:
    """The reason of the last chunk of a choice; all before it have none."""
    reasons = [choice["finish_reason"] for choice in choices_of(chunks, index)]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return reasons[-1]


def calls_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls put together as a client does."""
    calls: dict[int, dict[str, Any]] = {}
    for choice in choices_of(chunks):
        for delta in choice["delta"].get("tool_calls") or ():
            function = delta["function"]
            if "id" in delta:
                assert delta["index"] not in calls, "id and name come once"
                calls[delta["index"]] = {
                    "id": delta["id"], "type": delta["type"],
                    "function": {"name": function["name"], "arguments": ""},
                }  # fmt: skip
            calls[delta["index"]]["function"]["arguments"] += function["arguments"]
    return [calls[index] for index in sorted(calls)]


def delta(text: str = "", **more: Any) -> ChatDelta:
    return ChatDelta(index=more.pop("index", 0), text=text, num_tokens=1, **more)


def calling(*fragments: str, name: str = "weather", index: int = 0) -> list[ChatDelta]:
    """A call whose arguments come in fragments."""
    first = ToolCallDelta(index=index, id=f"call_{index}", name=name)
    rest = [ToolCallDelta(index=index, arguments=fragment) for fragment in fragments]
    return [delta(tool_calls=(one,)) for one in (first, *rest)]


def script(*events: ChatDelta, finish: str = "stop") -> Script:
    end = ChatDelta(index=0, text="", num_tokens=0, finish_reason=finish)  # type: ignore[arg-type]
    return [*events, end, ChatDone(prompt_tokens=7, completion_tokens=len(events), cached_tokens=2)]


def scored(text: str, logprob: float = -1.0, *, raw: bytes | None = None) -> TokenLogprob:
    data = text.encode() if raw is None else raw
    top = (TokenLogprob(token="!", logprob=-0.25, bytes=(33,)),)
    return TokenLogprob(token=text, logprob=logprob, bytes=tuple(data), top=top)
