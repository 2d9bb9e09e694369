"""The body of POST /v1/chat/completions, and how it becomes a `ChatRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from service.errors import BadRequest, shown
from service.http.json_values import as_list
from workers.protocol import ChatMessage, ChatParams, ChatRequest, LLMLimits

MAX_SEED = 2**63 - 1
MAX_CHOICES = 8
_MAX_MESSAGES = 2048
_MAX_STOPS = 16
_MAX_BIASES = 1024
_Role = Literal["system", "developer", "user", "assistant", "tool"]
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]
_Stop = Annotated[str, Field(min_length=1, max_length=256)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


def _as_parts(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = as_list(content)
    if parts is None:
        raise ValueError("must be a string or a list of text parts")
    return parts


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class TextPart(_Body):
    """A piece of text in a message."""

    type: Literal["text"]
    text: str


class Message(_Body):
    """One turn: a string, or a list of text parts that are joined as they stand."""

    role: _Role
    content: Annotated[list[TextPart], BeforeValidator(_as_parts)]
    name: str | None = Field(default=None, max_length=256)


class StreamOptions(_Body):
    """What a stream carries beside the text."""

    include_usage: bool | None = None


class ChatBody(_Body):
    """Chat completion request. Fields that OpenAI has and we cannot serve are refused by name."""

    model: str = Field(min_length=1, max_length=256)
    messages: list[Message] = Field(min_length=1, max_length=_MAX_MESSAGES)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    stop: Annotated[list[_Stop] | None, BeforeValidator(_as_list)] = Field(
        default=None, max_length=_MAX_STOPS
    )
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=_MAX_BIASES
    )
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=512)
    metadata: dict[_Key, _Value] | None = Field(default=None, max_length=16)

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatBody:
        if self.stream_options is not None and not self.stream:
            raise BadRequest(
                "stream_options is set, but stream is not true: leave it out, or set stream.",
                param="stream_options",
            )
        if self.top_logprobs and not self.logprobs:
            raise BadRequest(
                f"top_logprobs is {self.top_logprobs}, but logprobs is not true: set logprobs.",
                param="top_logprobs",
            )
        return self

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with the chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def to_request(self, chat_id: str, limits: LLMLimits | None) -> ChatRequest:
        """The request as a worker reads it."""
        messages = tuple(
            ChatMessage(role=m.role, content="".join(p.text for p in m.content), name=m.name)
            for m in self.messages
        )
        params = ChatParams(**self._given(), logit_bias=_biases(self.logit_bias, limits))
        if limits is not None:
            _check_length(params.max_tokens, limits, self.max_completion_tokens is not None)
        return ChatRequest(id=chat_id, model=self.model, messages=messages, params=params)

    def _given(self) -> dict[str, Any]:
        """Sampling fields that are set; what is not keeps the default of `ChatParams`."""
        names = (
            "temperature", "top_p", "min_p", "seed", "n", "logprobs", "top_logprobs",
            "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos",
        )  # fmt: skip
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        if self.stop is not None:
            given["stop"] = tuple(self.stop)
        wanted = self.max_completion_tokens or self.max_tokens
        return given if wanted is None else given | {"max_tokens": wanted}


def _biases(biases: Mapping[str, float] | None, limits: LLMLimits | None) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, bias in (biases or {}).items():
        is_number = key.isascii() and key.isdecimal() and len(key) <= 9
        if not is_number or (limits is not None and int(key) >= limits.vocab_size):
            bound = f"0 to {limits.vocab_size - 1}" if limits else "whole numbers"
            raise BadRequest(
                f"logit_bias has the key {shown(key)}; token ids are {bound}.", param="logit_bias"
            )
        found[int(key)] = bias
    return found


def _check_length(max_tokens: int | None, limits: LLMLimits, is_new_name: bool) -> None:
    if max_tokens is None or max_tokens <= limits.max_model_len:
        return
    name = "max_completion_tokens" if is_new_name else "max_tokens"
    raise BadRequest(
        f"{name} is {max_tokens}; this model holds {limits.max_model_len} tokens of prompt and "
        "answer together.",
        param=name,
        code="context_length_exceeded",
    )
