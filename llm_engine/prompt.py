"""Checking a request against the loaded model and turning it into prompt tokens.

Everything that can be refused is refused here, in the caller's thread, before anything is queued.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.ledger import Decision
from llm_engine.chat.answer_format import AnswerFormat, ChatAnswers
from llm_engine.chat.chat_format import ChatFormat
from llm_engine.chat.decision import chat_decision
from llm_engine.chat.parser import OutputParser
from llm_engine.errors import ContextLengthExceeded, InvalidRequest
from llm_engine.structured.bounds import OutOfBounds
from llm_engine.structured.compiler import GrammarCompiler
from llm_engine.structured.decision import grammar_decision
from llm_engine.structured.grammar import grammar_of, param_of
from llm_engine.structured.matcher import TokenMatcher
from llm_engine.structured.vocabulary import Vocabulary
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import ChatMessage, GenerationRequest

# A text of more characters than this a token of the context is looked at before it is tokenised,
# which takes about a second a megabyte; one that fits has about four.
_LONG_TEXT_CHARS = 16


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be served: its prompt tokens, and how long each choice may become.

    `matcher` and `parser` make the state of one choice: what binds its tokens, what splits its
    text. None where nothing binds and the text is the content.
    """

    request: GenerationRequest
    prompt_ids: tuple[int, ...]
    max_total_tokens: int
    matcher: Callable[[], TokenMatcher] | None = None
    parser: Callable[[], OutputParser] | None = None


class Preparer:
    """Prepares requests for one model. Safe to use from several threads.

    The grammar library's vocabulary is built, and its compiling process started, with the first
    request that needs them; `warm_up` does the former ahead.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int] | frozenset[int],
        grammar_timeout_s: float,
    ) -> None:
        """For a model with `vocab_size` logits and a context of `max_model_len` tokens."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        size = max(vocab_size, tokenizer.vocab_size)
        self._vocabulary = Vocabulary(tokenizer.backend, size, tuple(eos_token_ids))
        self._timeout_s = grammar_timeout_s
        self._compiler = GrammarCompiler(self._vocabulary, timeout_s=grammar_timeout_s)
        self._chat = _chat_format(tokenizer)
        self._answers = ChatAnswers(self._vocabulary, tokenizer.backend)

    def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Tokenise and check a request; `max_tokens` beyond the context is cut to what fits.

        Raises: InvalidRequest for a token id outside the vocabulary, messages that cannot be
        rendered, tools or a constraint that cannot be followed; ContextLengthExceeded if the
        prompt leaves no room for one token.
        """
        answer = self._answer_format(request)
        prompt_ids = self._prompt_ids(request)
        self._check_ids("logit_bias", tuple(request.params.logit_bias))
        self._check_ids("stop_token_ids", request.params.stop_token_ids)
        if len(prompt_ids) >= self._max_model_len:
            param = "prompt" if request.messages is None else "messages"
            raise ContextLengthExceeded(len(prompt_ids), self._max_model_len, param)
        matcher = None
        if answer.grammar is not None:
            matcher = self._compiler.compile(answer.grammar).matcher
        max_total_tokens = self._max_model_len
        if request.params.max_tokens is not None:
            max_total_tokens = min(max_total_tokens, len(prompt_ids) + request.params.max_tokens)
        return PreparedRequest(request, prompt_ids, max_total_tokens, matcher, answer.parser)

    def decisions(self) -> tuple[Decision, ...]:
        """What binds answers, and in which form calls and reasoning are written."""
        family = None if self._chat is None else self._chat.family
        return (
            grammar_decision(self._timeout_s),
            chat_decision(family),
            *self._tokenizer.decisions(),
        )

    def warm_up(self) -> None:
        """Build what the first bound request would wait for, some tenths of a second."""
        assert self._vocabulary.tokenizer

    def close(self) -> None:
        """End the compiling process, if one was started."""
        self._compiler.close()

    def _prompt_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        if request.messages is not None:
            return self._chat_ids(request, request.messages)
        for name, is_set in (
            ("tools", request.tools is not None),
            ("continue_final_message", request.continue_final_message),
        ):
            if is_set:
                raise InvalidRequest(
                    f"{name} needs messages, but the request has a ready prompt: send messages",
                    param=name,
                )
        if request.prompt_text is not None:
            self._check_length(request.prompt_text, "prompt")
            prompt_ids = tuple(self._tokenizer.encode(request.prompt_text))
            if not prompt_ids:
                raise InvalidRequest("prompt is empty: give at least one token", param="prompt")
            return prompt_ids
        prompt_ids = request.prompt_token_ids or ()
        self._check_ids("prompt_token_ids", prompt_ids)
        return prompt_ids

    def _chat_ids(
        self, request: GenerationRequest, messages: tuple[ChatMessage, ...]
    ) -> tuple[int, ...]:
        chat = self._required_chat()
        tools = request.tools
        shown = tools.tools if tools is not None and tools.mode != "none" else ()
        text = chat.render(
            messages,
            tools=shown,
            options=request.template_options,
            continues_last=request.continue_final_message,
        )
        self._check_length(text, "messages")
        return tuple(self._tokenizer.encode_text(text, salt=request.tenant_salt))

    def _check_length(self, text: str, param: str) -> None:
        """Refuse a text that is far too long without tokenising it."""
        if len(text) < _LONG_TEXT_CHARS * self._max_model_len:
            return
        num_tokens = self._tokenizer.at_least(text)
        if num_tokens >= self._max_model_len:
            raise ContextLengthExceeded(num_tokens, self._max_model_len, param, is_exact=False)

    def _answer_format(self, request: GenerationRequest) -> AnswerFormat:
        grammar = None
        if request.constraint is not None:
            try:
                grammar = grammar_of(request.constraint)
            except OutOfBounds as error:
                param = param_of(request.constraint)
                raise InvalidRequest(f"{param}: {error}", param=param) from error
        if request.messages is None:
            return AnswerFormat(grammar=grammar)
        return self._answers.of(self._required_chat(), request, request.messages, grammar)

    def _required_chat(self) -> ChatFormat:
        if self._chat is None:
            raise InvalidRequest(
                "this model has no chat template: send a prompt instead of messages",
                param="messages",
            )
        return self._chat

    def _check_ids(self, param: str, token_ids: tuple[int, ...]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequest(
                    f"{param} holds token {token_id}, must lie between 0 and "
                    f"{self._vocab_size - 1}",
                    param=param,
                )


def _chat_format(tokenizer: Tokenizer) -> ChatFormat | None:
    template = tokenizer.chat_template
    return ChatFormat(template, tokenizer.special_tokens) if template else None
