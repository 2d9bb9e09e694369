"""Checking a request against the loaded model and turning it into prompt tokens."""

from dataclasses import dataclass

from llm_engine.errors import ContextLengthExceeded, InvalidRequest
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import GenerationRequest


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be served: its prompt tokens, and how long each choice may become."""

    request: GenerationRequest
    prompt_ids: tuple[int, ...]
    max_total_tokens: int


def prepare(
    request: GenerationRequest, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int
) -> PreparedRequest:
    """Tokenise and check a request; `max_tokens` beyond the context is cut to what fits.

    Raises: InvalidRequest for a token id outside the vocabulary or an unknown role;
    ContextLengthExceeded if the prompt leaves no room for one token.
    """
    if request.messages is not None:
        prompt_ids = tuple(tokenizer.encode_chat(request.messages))
    else:
        prompt_ids = request.prompt_token_ids or ()
    params = request.params
    _check_ids("prompt_token_ids", prompt_ids, vocab_size)
    _check_ids("logit_bias", tuple(params.logit_bias), vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    if len(prompt_ids) >= max_model_len:
        raise ContextLengthExceeded(len(prompt_ids), max_model_len)
    max_total_tokens = max_model_len
    if params.max_tokens is not None:
        max_total_tokens = min(max_model_len, len(prompt_ids) + params.max_tokens)
    return PreparedRequest(request, prompt_ids, max_total_tokens)


def _check_ids(param: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{param} holds token {token_id}, must lie between 0 and {vocab_size - 1}",
                param=param,
            )
