"""What the bodies of chats and completions share: bounds, sampling, how the answer comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from service.errors import BadRequest, shown
from service.schemas.strict import Body, Text
from service.schemas.structured import StructuredOutputs
from workers.protocol import LLMLimits

# 64 bits, read with a sign or without one.
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
MAX_INT = 2**31 - 1
_MAX_STOPS = 16
_MAX_STOP_IDS = 256
_MAX_BIASES = 1024
_MAX_PRIORITY = 100
_MAX_DEADLINE_S = 86_400


Stop = Annotated[Text, Field(min_length=1, max_length=256)]


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class StreamOptions(Body):
    """What a stream carries beside the text."""

    include_usage: bool | None = None


class GenerationBody(Body):
    """Fields that chats and completions share. Lengths in tokens, times in seconds."""

    model: str = Field(min_length=1, max_length=256)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INT)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    min_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)
    stop: Annotated[list[Stop] | None, BeforeValidator(_as_list)] = Field(
        default=None, max_length=_MAX_STOPS
    )
    stop_token_ids: list[Annotated[int, Field(ge=0, le=MAX_INT)]] | None = Field(
        default=None, max_length=_MAX_STOP_IDS
    )
    include_stop_str_in_output: bool | None = None
    seed: int | None = Field(
        default=None,
        ge=MIN_SEED,
        le=MAX_SEED,
        description="64 bits: a negative seed draws as the one that is 2**64 larger.",
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=_MAX_BIASES
    )
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = Field(
        default=None,
        ge=-_MAX_PRIORITY,
        le=_MAX_PRIORITY,
        description="A smaller one runs sooner, as with clips; default: 0.",
    )
    cache_salt: Text | None = Field(default=None, max_length=256)
    deadline_s: float | None = Field(default=None, gt=0, le=_MAX_DEADLINE_S)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=512)

    @model_validator(mode="after")
    def _stream_fields_agree(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise BadRequest(
                "stream_options is set, but stream is not true: leave it out, or set stream.",
                param="stream_options",
            )
        return self

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with the chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(
        self, limits: LLMLimits | None, max_tokens: int | None, length_field: str = "max_tokens"
    ) -> dict[str, Any]:
        """Fields of `ChatParams` that are set; what is not keeps its default there.

        `length_field` is the name under which `max_tokens` was given.

        Raises: BadRequest for a token id or a length that the model does not hold.
        """
        names = (
            "temperature", "top_p", "min_p", "seed", "min_tokens", "presence_penalty",
            "frequency_penalty", "repetition_penalty", "ignore_eos", "include_stop_str_in_output",
        )  # fmt: skip
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        given["stop"] = tuple(self.stop or ())
        given["stop_token_ids"] = tuple(self.stop_token_ids or ())
        given["logit_bias"] = _biases(self.logit_bias, limits)
        given["max_tokens"] = max_tokens
        self._check_lengths(max_tokens, limits, length_field)
        if limits is not None:
            check_ids("stop_token_ids", given["stop_token_ids"], limits)
        return given

    def _check_lengths(
        self, max_tokens: int | None, limits: LLMLimits | None, length_field: str
    ) -> None:
        if max_tokens is not None and self.min_tokens is not None and self.min_tokens > max_tokens:
            raise BadRequest(
                f"min_tokens is {self.min_tokens}, above {length_field} {max_tokens}.",
                param="min_tokens",
            )
        longest = max(max_tokens or 0, self.min_tokens or 0)
        if limits is None or longest <= limits.max_model_len:
            return
        name = length_field if (max_tokens or 0) > limits.max_model_len else "min_tokens"
        raise BadRequest(
            f"{name} is {longest}; this model holds {limits.max_model_len} tokens of prompt and "
            "answer together.",
            param=name,
            code="context_length_exceeded",
        )


def check_ids(param: str, ids: Sequence[int], limits: LLMLimits) -> None:
    """Refuse token ids that the model does not have.

    Raises: BadRequest naming the first of them.
    """
    for token_id in ids:
        if token_id >= limits.vocab_size:
            raise BadRequest(
                f"{param} holds {token_id}; token ids are 0 to {limits.vocab_size - 1}.",
                param=param,
            )


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
