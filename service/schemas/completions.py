"""The body of POST /v1/completions, and how it becomes one `ChatRequest` a prompt."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from service.errors import BadRequest
from service.http.json_values import as_list, has_lone_surrogate
from service.schemas.chat import MAX_CHOICES
from service.schemas.generation import MAX_INT, GenerationBody, check_ids
from service.schemas.structured import ResponseFormat, constraint_of
from workers.protocol import ChatParams, ChatRequest, LLMLimits

MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5

Prompt = str | tuple[int, ...]


def _as_prompts(value: object) -> list[Prompt]:
    """One prompt or several, each a text or token ids."""
    if isinstance(value, str):
        return [_text(value)]
    entries = as_list(value)
    if not entries:
        raise ValueError("must be a text, a list of texts, token ids, or a list of those")
    if all(_is_id(entry) for entry in entries):
        return [tuple(entries)]
    if len(entries) > MAX_PROMPTS:
        raise ValueError(f"holds {len(entries)} prompts; at most {MAX_PROMPTS} are taken")
    return [_one(entry) for entry in entries]


def _one(entry: object) -> Prompt:
    if isinstance(entry, str):
        return _text(entry)
    ids = as_list(entry)
    if not ids or not all(_is_id(token_id) for token_id in ids):
        raise ValueError("must hold texts, or lists of token ids, none of them empty")
    return tuple(ids)


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty; give at least one character")
    if has_lone_surrogate(text):
        raise ValueError("holds half a character (a lone surrogate)")
    return text


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT


class CompletionBody(GenerationBody):
    """Completion request. `max_tokens` is 16 where it is not given, as at OpenAI.

    `max_tokens` 0 with `echo` scores the prompt: with `logprobs`, its own log-probabilities.
    """

    prompt: Annotated[list[Any], BeforeValidator(_as_prompts)]
    max_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    best_of: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    suffix: str | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> CompletionBody:
        if self.max_tokens == 0 and not self.echo:
            raise BadRequest(
                "max_tokens is 0, so there is nothing to answer: set echo to score the prompt.",
                param="max_tokens",
            )
        if self.suffix:
            raise BadRequest(
                "suffix is not supported; leave it out.",
                param="suffix",
                code="unsupported_parameter",
            )
        if self.best_of not in (None, self.num_choices):
            raise BadRequest(
                f"best_of is {self.best_of}, n is {self.num_choices}: only the same number is "
                "supported.",
                param="best_of",
                code="unsupported_parameter",
            )
        return self

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return self.n or 1

    @property
    def is_scoring(self) -> bool:
        """Whether nothing is generated."""
        return self.max_tokens == 0

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, in order."""
        return self.prompt

    def needs_scores(self, prompt: Prompt) -> bool:
        """Whether the engine must tell the prompt's tokens: their scores, or their text."""
        return bool(self.echo) and (self.logprobs is not None or not isinstance(prompt, str))

    def to_requests(
        self, answer_id: str, limits: LLMLimits | None, *, model: str, adapter: str | None,
        tenant: str,
    ) -> list[ChatRequest]:  # fmt: skip
        """One request for each prompt, as a worker reads them.

        The engine makes at least one token, so a prompt that is only scored asks for one.
        Raises: BadRequest naming the field.
        """
        length = DEFAULT_MAX_TOKENS if self.max_tokens is None else max(self.max_tokens, 1)
        fields: dict[str, Any] = self.sampling(limits, length) | {"n": self.num_choices}
        if self.logprobs is not None:
            fields |= {"logprobs": True, "top_logprobs": self.logprobs}
        constraint = constraint_of(self.response_format, self.structured_outputs)
        requests: list[ChatRequest] = []
        for place, prompt in enumerate(self.prompts):
            scores: dict[str, Any] = {}
            if self.needs_scores(prompt):
                scores["prompt_logprobs"] = self.logprobs or 0
            ids = None if isinstance(prompt, str) else prompt
            if ids is not None and limits is not None:
                check_ids("prompt", ids, limits)
            requests.append(
                ChatRequest(
                    id=f"{answer_id}-{place}",
                    model=model,
                    prompt_text=prompt if isinstance(prompt, str) else None,
                    prompt_token_ids=ids,
                    params=ChatParams(**fields | scores),
                    constraint=constraint,
                    adapter=adapter,
                    tenant=tenant,
                    priority=self.priority or 0,
                    deadline_s=self.deadline_s,
                    cache_salt=self.cache_salt or "",
                )
            )
        return requests
