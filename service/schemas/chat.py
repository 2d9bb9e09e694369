"""The body of POST /v1/chat/completions, and how it becomes a `ChatRequest`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from service.errors import BadRequest
from service.http.json_values import has_lone_surrogate
from service.schemas.chat_messages import Message, to_messages
from service.schemas.chat_tools import MAX_TOOLS, ToolDefinition, tool_use
from service.schemas.generation import MAX_INT, GenerationBody
from service.schemas.structured import ResponseFormat, constraint_of
from workers.protocol import ChatParams, ChatRequest, LLMLimits

MAX_CHOICES = 8
MAX_TEMPLATE_CHARS = 64 * 2**10
_MAX_MESSAGES = 2048
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]
# What the engine itself hands to a chat template.
_OWN_OPTIONS = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
}  # fmt: skip


class ChatBody(GenerationBody):
    """Chat completion request. Fields that OpenAI has and we cannot serve are refused by name.

    `max_completion_tokens` wins over `max_tokens`. `continue_final_message` goes on with the last
    assistant message (and takes `add_generation_prompt` as false). `chat_template_kwargs` reach
    the model's template; `reasoning_effort` does too, and "none" turns thinking off.
    """

    messages: list[Message] = Field(min_length=1, max_length=_MAX_MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[ToolDefinition] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    chat_template_kwargs: dict[_Key, Any] | None = Field(default=None, max_length=32)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    metadata: dict[_Key, _Value] | None = Field(default=None, max_length=16)

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise BadRequest(
                f"top_logprobs is {self.top_logprobs}, but logprobs is not true: set logprobs.",
                param="top_logprobs",
            )
        if not self.continue_final_message:
            if self.add_generation_prompt is False:
                raise BadRequest(
                    "add_generation_prompt is false, so nobody would answer: set "
                    "continue_final_message to go on with the assistant's last message.",
                    param="add_generation_prompt",
                )
            return self
        if self.messages[-1].role != "assistant":
            raise BadRequest(
                "continue_final_message is true, but the last message is not the assistant's.",
                param="continue_final_message",
            )
        if self.add_generation_prompt:
            raise BadRequest(
                "continue_final_message and add_generation_prompt exclude each other.",
                param="add_generation_prompt",
            )
        return self

    def to_request(
        self, chat_id: str, limits: LLMLimits | None, *, model: str, adapter: str | None,
        tenant: str,
    ) -> ChatRequest:  # fmt: skip
        """The request as a worker reads it.

        Raises: BadRequest naming the field.
        """
        fields = self._length_fields(limits)
        for name in ("n", "logprobs", "top_logprobs"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        return ChatRequest(
            id=chat_id,
            model=model,
            messages=to_messages(self.messages),
            params=ChatParams(**fields),
            tools=tool_use(self.tools, self.tool_choice, self.parallel_tool_calls),
            constraint=constraint_of(self.response_format, self.structured_outputs),
            adapter=adapter,
            tenant=tenant,
            priority=self.priority or 0,
            deadline_s=self.deadline_s,
            cache_salt=self.cache_salt or "",
            continue_final_message=bool(self.continue_final_message),
            template_options=self._template_options(),
        )

    def _length_fields(self, limits: LLMLimits | None) -> dict[str, Any]:
        if self.max_completion_tokens is None:
            return self.sampling(limits, self.max_tokens)
        return self.sampling(limits, self.max_completion_tokens, "max_completion_tokens")

    def _template_options(self) -> dict[str, Any]:
        options = dict(self.chat_template_kwargs or {})
        param = "chat_template_kwargs"
        if own := sorted(_OWN_OPTIONS & set(options)):
            raise BadRequest(f"{param} may not hold {own[0]}; it has a field.", param=param)
        text = json.dumps(options, ensure_ascii=False)
        if has_lone_surrogate(text):
            raise BadRequest(f"{param} holds half a character (a lone surrogate).", param=param)
        if len(text) > MAX_TEMPLATE_CHARS:
            raise BadRequest(f"{param} has more than {MAX_TEMPLATE_CHARS} characters.", param=param)
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
            options.setdefault("enable_thinking", self.reasoning_effort != "none")
        return options
