"""The engine's words and the wire's: requests in, events and failures out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from llm_engine.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    LLMError,
    QueueFull,
)
from llm_engine.types import (
    ChatMessage,
    Constraint,
    Finished,
    GenerationRequest,
    PromptScored,
    SamplingParams,
    TextDelta,
    Tool,
    ToolCall,
    ToolUse,
)
from llm_engine.types import TokenLogprob as EngineLogprob
from workers import protocol as wire

Values = dict[str, Any]
EngineItem = TextDelta | PromptScored | Finished | LLMError


def to_engine(request: wire.ChatRequest) -> GenerationRequest:
    """The engine's form of a request.

    Raises: InvalidRequest when a value is out of the engine's bounds.
    """
    messages = request.messages
    constraint = request.constraint
    return GenerationRequest(
        request_id=request.id,
        messages=None if messages is None else tuple(map(_message, messages)),
        prompt_token_ids=request.prompt_token_ids,
        prompt_text=request.prompt_text,
        params=SamplingParams(**request.params.model_dump()),
        priority=request.priority,
        tenant=request.tenant,
        deadline_s=request.deadline_s,
        adapter=request.adapter,
        tools=None if request.tools is None else _tool_use(request.tools),
        constraint=None
        if constraint is None
        else Constraint(constraint.kind, constraint.source, constraint.strict),
        cache_salt=request.cache_salt,
        continue_final_message=request.continue_final_message,
        template_options=request.template_options,
    )


def to_wire(item: EngineItem) -> Values:
    """A `ChatEvent` as plain values, for what the engine says about a request.

    Built by hand, without what has its default: it runs once a token beside the engine's thread,
    and making a checked model takes ten times as long.
    """
    if isinstance(item, TextDelta):
        return _delta(item)
    if isinstance(item, Finished):
        return {"type": "done"} | asdict(item)
    if isinstance(item, PromptScored):
        return {
            "type": "prompt",
            "token_ids": item.token_ids,
            "first_bytes": item.first_bytes,
            "logprobs": [None if entry is None else _logprob(entry) for entry in item.logprobs],
        }
    return failure_of(item).model_dump()


def failure_of(error: LLMError) -> wire.ChatFailed:
    """The HTTP status and code that an engine's error deserves.

    A deadline is the caller's own bound, so passing it is 408 and no failure of the service.
    """
    if isinstance(error, ContextLengthExceeded):
        status, code = 400, "context_length_exceeded"
    elif isinstance(error, InvalidRequest):
        status, code = 400, None
    elif isinstance(error, QueueFull):
        status, code = 429, "queue_full"
    elif isinstance(error, DeadlineExceeded):
        status, code = 408, "deadline_exceeded"
    elif isinstance(error, EngineDead):
        status, code = 503, "engine_dead"
    else:
        status, code = 500, "engine_error"
    param = error.param if isinstance(error, InvalidRequest) else None
    return wire.ChatFailed(status=status, code=code, message=str(error), param=param)


def _message(message: wire.ChatMessage) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=message.content,
        name=message.name,
        tool_calls=tuple(ToolCall(c.id, c.name, c.arguments) for c in message.tool_calls),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _tool_use(use: wire.ChatToolUse) -> ToolUse:
    return ToolUse(
        tools=tuple(Tool(t.name, t.description, t.parameters, t.strict) for t in use.tools),
        mode=use.mode,
        name=use.name,
        parallel=use.parallel,
    )


def _delta(delta: TextDelta) -> Values:
    values: Values = {
        "type": "delta",
        "index": delta.index,
        "text": delta.text,
        "num_tokens": len(delta.token_ids),
    }
    if delta.logprobs is not None:
        values["logprobs"] = [_logprob(entry) for entry in delta.logprobs]
    if delta.finish_reason is not None:
        values["finish_reason"] = delta.finish_reason
    if delta.reasoning:
        values["reasoning"] = delta.reasoning
    if delta.tool_calls:
        values["tool_calls"] = [asdict(call) for call in delta.tool_calls]
    return values


def _logprob(entry: EngineLogprob) -> Values:
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": entry.bytes,
        "top": [_logprob(other) for other in entry.top],
    }
