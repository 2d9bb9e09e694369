"""Chats and completions on the wire: the request, and the events of its answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from workers.protocol.wire import Wire


class ToolCall(Wire):
    """A call that an assistant made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class ChatMessage(Wire):
    """One turn; text parts are already joined."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class ChatTool(Wire):
    """A function on offer; `parameters` is its JSON schema as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"
    strict: bool = False


class ChatToolUse(Wire):
    """The functions on offer and how they may be called; `name` forces one of them."""

    tools: tuple[ChatTool, ...]
    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


class ChatConstraint(Wire):
    """What the whole answer must match; `source` is read as `kind` says (see llm_engine.types).

    `strict` refuses a schema with a keyword that is unknown or cannot be followed; without it
    such a keyword binds nothing.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    source: str = ""
    strict: bool = False


class ChatParams(Wire):
    """Sampling, as asked for; None means the engine's default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = Field(default_factory=dict[int, float])
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    prompt_logprobs: int | None = None


class ChatRequest(Wire):
    """One request on its way to an LLM worker (kept in Redis, found by `id`).

    Exactly one of `messages`, `prompt_text` and `prompt_token_ids` is given. `tenant` is the id of
    the API key; a smaller `priority` runs sooner; `deadline_s` bounds the time in the engine.
    Computed prompts are shared among requests of one `cache_salt` only.
    """

    id: str
    model: str
    messages: tuple[ChatMessage, ...] | None = None
    prompt_text: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    params: ChatParams
    tools: ChatToolUse | None = None
    constraint: ChatConstraint | None = None
    adapter: str | None = None
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None
    cache_salt: str = ""
    continue_final_message: bool = False
    template_options: dict[str, Any] = Field(default_factory=dict[str, Any])


class TokenLogprob(Wire):
    """Log-probability of one token, with its alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top: tuple[TokenLogprob, ...] = ()


class ToolCallDelta(Wire):
    """A piece of tool call `index`: `id` and `name` come once and first, then `arguments`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ChatDelta(Wire):
    """New text of one choice, with what the output parser took out of it."""

    type: Literal["delta"] = "delta"
    index: int
    text: str
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class PromptScored(Wire):
    """The prompt's own log-probabilities, once and before the first delta; the first is None.

    `first_bytes` are the first token's own bytes, which no log-probability shows.
    """

    type: Literal["prompt"] = "prompt"
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]
    first_bytes: tuple[int, ...] = ()


class ChatDone(Wire):
    """Last event of an answer, with the usage over all choices."""

    type: Literal["done"] = "done"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_draft_tokens: int = 0
    rejected_draft_tokens: int = 0


class ChatFailed(Wire):
    """Last event of an answer that went wrong; `status` is the HTTP status it deserves."""

    type: Literal["failed"] = "failed"
    status: int
    code: str | None
    message: str
    param: str | None = None


ChatEvent = Annotated[ChatDelta | PromptScored | ChatDone | ChatFailed, Field(discriminator="type")]
