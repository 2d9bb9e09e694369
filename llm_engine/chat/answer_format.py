"""What a chat request says of its answer: the grammar that binds it, the parser that reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from llm_engine.chat.channel_grammar import ChannelGrammar
from llm_engine.chat.channel_parser import ChannelOutput, ChannelParser
from llm_engine.chat.channels import ChannelMarkers
from llm_engine.chat.chat_format import ChatFormat
from llm_engine.chat.parser import OutputParser
from llm_engine.chat.reasoning_grammar import MarkerVocabulary, ReasoningPrefix
from llm_engine.chat.stream_parser import OutputFormat, StreamParser
from llm_engine.chat.tool_grammar import CheckedTool, call_grammar, check_tools
from llm_engine.errors import InvalidRequest
from llm_engine.structured.bounds import OutOfBounds
from llm_engine.structured.grammar import Grammar
from llm_engine.types import ChatMessage, GenerationRequest, Tool, ToolUse


class _Backend(Protocol):
    def get_added_tokens_decoder(self) -> Any: ...  # noqa: ANN401 - untyped there


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """None where nothing binds, and where the text is the content."""

    grammar: Grammar | None = None
    parser: Callable[[], OutputParser] | None = None


class ChatAnswers:
    """Grammar and parser for the chat requests of one tokenizer."""

    def __init__(self, vocabulary: MarkerVocabulary, backend: _Backend) -> None:
        """The vocabulary writes markers into grammars; the backend knows what decoding hides."""
        self._vocabulary = vocabulary
        self._backend = backend

    def check(self, use: ToolUse) -> tuple[CheckedTool, ...]:
        """Raises: InvalidRequest for tools that cannot be offered."""
        try:
            return check_tools(use)
        except OutOfBounds as error:
            raise InvalidRequest(str(error), param="tools") from error

    def of(
        self,
        chat: ChatFormat,
        request: GenerationRequest,
        messages: tuple[ChatMessage, ...],
        constraint: Grammar | None,
    ) -> AnswerFormat:
        """Put reasoning, calls and constraint together.

        Raises: InvalidRequest for tools that cannot be offered or forced.
        """
        family = chat.family
        if family.channels is not None:
            return self._on_channels(family.channels, chat, request, constraint)
        start = chat.reasoning_start(
            messages, request.template_options, continues_last=request.continue_final_message
        )
        prefix = ReasoningPrefix(self._vocabulary, family.reasoning, start)
        use = request.tools
        if use is not None and use.mode != "none":
            tools = self.check(use)
            grammar = call_grammar(family.calls, tools, use, prefix, constraint)
        else:
            use = None
            grammar = None if constraint is None else prefix.before(constraint)
        if use is None and start == "off":
            return AnswerFormat(grammar)
        form = OutputFormat(
            reasoning=family.reasoning,
            start=start,
            calls=None if use is None else family.calls,
            tools=() if use is None else use.tools,
        )
        form = form.shown_with(self._hidden_tokens)
        return AnswerFormat(grammar, partial(StreamParser, form))

    def _on_channels(
        self,
        channels: ChannelMarkers,
        chat: ChatFormat,
        request: GenerationRequest,
        constraint: Grammar | None,
    ) -> AnswerFormat:
        start = chat.channel_start(
            channels, request.template_options, continues_last=request.continue_final_message
        )
        rules = ChannelGrammar(channels, self._vocabulary, start)
        use = request.tools
        offered: tuple[Tool, ...] = ()
        if use is not None and use.mode != "none":
            if not chat.family.knows_tools:
                raise InvalidRequest(
                    "the model's chat template has no place for tools: leave them out",
                    param="tools",
                )
            offered, tools = use.tools, self.check(use)
            try:
                grammar = rules.of_calls(tools, use, constraint)
            except OutOfBounds as error:
                raise InvalidRequest(str(error), param="tool_choice") from error
        else:
            grammar = None if constraint is None else rules.before(constraint)
        form = ChannelOutput(channels, start, offered).shown_with(self._hidden_tokens)
        return AnswerFormat(grammar, partial(ChannelParser, form))

    @cached_property
    def _hidden_tokens(self) -> tuple[str, ...]:
        """Special tokens, which decoding leaves out unless asked."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(token.content for token in added.values() if token.special)
