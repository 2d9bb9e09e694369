"""What goes into the engine and what comes out. Free of torch, so anyone may import it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_engine.errors import InvalidRequest

FinishReason = Literal["stop", "length", "tool_calls"]
ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]
ToolMode = Literal["none", "auto", "required"]

LOGPROB_FLOOR = -9999.0
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
_SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is system, developer, user, assistant or tool.

    `tool_calls` and `reasoning` belong to assistant turns, `tool_call_id` to tool turns.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is its JSON schema as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions on offer; `name` forces one of them, `parallel` allows several calls."""

    tools: tuple[Tool, ...]
    mode: ToolMode = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the whole answer must match.

    `source` is empty for json_object, a JSON schema as JSON text for json_schema, a regular
    expression, a JSON list of strings for choice, a Lark grammar for grammar. `strict` refuses
    a schema of which any keyword is unknown or cannot be followed; otherwise it is left out.
    """

    kind: ConstraintKind
    source: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next tokens are chosen.

    `temperature` 0 takes the likeliest token, and so does `top_p` 0. `top_k` 0 and `min_p` 0 are
    off. `presence_penalty` and `frequency_penalty` count the answer's tokens only,
    `repetition_penalty` counts the prompt's too. `max_tokens=None` runs to the end of the context.
    `seed=None` draws a fresh seed. The end-of-sequence tokens always stop unless `ignore_eos`.
    `prompt_logprobs` asks for the prompt's own log probabilities with that many alternatives.
    Raises: InvalidRequest naming the value, its bound and the way out.
    """

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
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Check every field against its bounds."""
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_range("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        _check_range("n", self.n, 1, MAX_CHOICES)
        _check_range("top_k", self.top_k, 0, None)
        _check_range("min_tokens", self.min_tokens, 0, None)
        if self.prompt_logprobs is not None:
            _check_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        if self.max_tokens is not None:
            _check_range("max_tokens", self.max_tokens, 1, None)
            _check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs}, but logprobs is false: set logprobs to true",
                param="top_logprobs",
            )
        self._check_stops_and_bias()

    def _check_stops_and_bias(self) -> None:
        if "" in self.stop:
            raise InvalidRequest("stop holds an empty string: leave it out", param="stop")
        if self.seed is not None and abs(self.seed) >= 2**_SEED_BITS:
            raise InvalidRequest(
                f"seed is {self.seed}, must lie within {_SEED_BITS} bits: choose a smaller one",
                param="seed",
            )
        for token_id, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0, param="logit_bias")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, without a draw."""
        return self.temperature == 0.0 or self.top_p == 0.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request: chat messages, ready prompt tokens or a prompt text, exactly one of them.

    A smaller `priority` runs sooner; a waiting request gains on the others as it waits. Requests
    of one `tenant` (an API key) share its turn. `deadline_s` bounds the time from `add` to the
    last token, in seconds. `adapter` names a LoRA adapter of the engine. `tools` go to the chat
    template; `constraint` binds the answer. `continue_final_message` goes on with the last
    assistant message instead of opening a new one. `template_options` reach the chat template.
    Computed prompts are shared between requests of the same `cache_salt` only.
    """

    request_id: str
    messages: tuple[ChatMessage, ...] | None
    prompt_token_ids: tuple[int, ...] | None
    params: SamplingParams
    priority: int = 0
    prompt_text: str | None = None
    tenant: str = ""
    deadline_s: float | None = None
    adapter: str | None = None
    tools: ToolUse | None = None
    constraint: Constraint | None = None
    continue_final_message: bool = False
    template_options: Mapping[str, object] = field(default_factory=dict[str, object])
    cache_salt: str = ""

    @property
    def tenant_salt(self) -> str:
        """The salt of what one tenant alone may share: its own name before `cache_salt`.

        The length keeps pairs apart that would read the same when joined.
        """
        return f"{len(self.tenant)}:{self.tenant}{self.cache_salt}"

    def __post_init__(self) -> None:
        """Check that exactly one kind of prompt is there, and that it is not empty."""
        prompts = (self.messages, self.prompt_token_ids, self.prompt_text)
        if sum(prompt is not None for prompt in prompts) != 1:
            raise InvalidRequest(
                "give messages, prompt_token_ids or prompt_text, exactly one of them",
                param="messages",
            )
        if self.messages is not None and not self.messages:
            raise InvalidRequest("messages is empty: give at least one message", param="messages")
        if self.prompt_token_ids is not None and not self.prompt_token_ids:
            raise InvalidRequest(
                "prompt_token_ids is empty: give at least one token", param="prompt_token_ids"
            )
        if self.deadline_s is not None:
            _check_range("deadline_s", self.deadline_s, 0.0, None)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural log probability under the model, before temperature and penalties.

    `bytes` are the token's own bytes, possibly a part of a character; `token` shows them with
    U+FFFD for such a part. `top` lists the likeliest alternatives, best first. Floor: -9999.0.
    """

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top: tuple["TokenLogprob", ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of tool call `index`: `id` and `name` come once and first, then `arguments`."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New tokens of choice `index`; `text` may lag behind them or be empty.

    Text is held back while a character is incomplete or a stop string may be starting.
    `reasoning` and `tool_calls` hold what the model's output parser took out of the text.
    `logprobs` has one entry per token id when asked for. The last delta of a choice, and only
    that one, has a `finish_reason`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The prompt's log probabilities, one entry per token; the first token has none.

    Comes once, before the first delta, where `prompt_logprobs` was asked for. `first_bytes` are
    the first token's own bytes, which no entry shows.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]
    first_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request: its token counts, summed over its choices.

    `prompt_tokens` counts the prompt once; `cached_tokens` are those not computed again.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    accepted_draft_tokens: int = 0
    rejected_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is loaded; `source` says where the weights came from.

    `kernels` lists (op, implementation, tier) of every op that is bound. `plan_hash` names the
    settings and decisions behind the answers, so that measurements can be told apart.
    """

    name: str
    source: str
    architecture: str
    num_parameters: int
    dtype: str
    max_model_len: int
    vocab_size: int
    kv_tokens: int
    kernels: tuple[tuple[str, str, str], ...] = ()
    plan_hash: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts at one moment; the totals grow for as long as the engine lives.

    Pages in use and pages cached are different ones; both are of `kv_pages_total`, and the rest
    is free. A request is a prefix hit when part of its prompt came from the cache (a partial one
    when more of it could have), else a miss with one cause of `prefix_misses_total`.
    `prefix_warnings_total` counts the runs of misses of prompts that began alike. Bytes of the
    host tier: held now, allowed, copied out of the device and into it.
    """

    running: int
    waiting: int
    kv_pages_used: int
    kv_pages_total: int
    generated_tokens_total: int
    prompt_tokens_total: int
    preemptions_total: int
    steps_total: int
    kv_pages_cached: int = 0
    copied_preemptions_total: int = 0
    min_reusable_prefix: int = 0
    prefix_hits_total: int = 0
    prefix_partial_hits_total: int = 0
    prefix_hit_tokens_total: int = 0
    prefix_prompt_tokens_total: int = 0
    prefix_misses_total: Mapping[str, int] = field(default_factory=dict[str, int])
    prefix_warnings_total: int = 0
    prefix_evicted_blocks_total: int = 0
    prefix_pinned_blocks: int = 0
    host_cache_bytes: int = 0
    host_cache_capacity_bytes: int = 0
    host_cache_out_bytes_total: int = 0
    host_cache_in_bytes_total: int = 0
    accepted_drafts_total: int = 0
    rejected_drafts_total: int = 0


def _check_range(
    name: str, value: float, low: float, high: float | None, param: str | None = None
) -> None:
    if not math.isnan(value) and value >= low and (high is None or value <= high):
        return
    bound = f"at least {low}" if high is None else f"between {low} and {high}"
    raise InvalidRequest(
        f"{name} is {value}, must be {bound}: change it or leave it out", param=param or name
    )
