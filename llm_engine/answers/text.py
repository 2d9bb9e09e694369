"""From a choice's tokens to what its caller reads: text, reasoning, tool calls, and the stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from llm_engine.answers.detokenizer import Detokenizer
from llm_engine.answers.stop_strings import StopMatcher
from llm_engine.chat.parser import OutputParser, ParsedText
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import SamplingParams, ToolCallDelta


@dataclass(slots=True)
class Piece:
    """What some tokens added; `is_stopped` when a stop string ended the answer."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    is_stopped: bool = False

    def extend(self, other: "Piece") -> None:
        """Append what came later."""
        self.content += other.content
        self.reasoning += other.reasoning
        self.tool_calls += other.tool_calls
        self.is_stopped = other.is_stopped


class AnswerText:
    """Tokens in; content, reasoning and tool calls out.

    Stop strings are looked for in the content alone, as the caller reads it: one that a model
    writes while it reasons, or inside a tool call's arguments, ends nothing. Where one does end
    the answer, calls that the same token would have begun are dropped. Within the first
    `min_tokens` tokens they are not looked for at all.

    Invariants: the contents joined equal the decoded answer without what the parser took out, cut
    before a stop string (behind it with `include_stop_str_in_output`).
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, parser: OutputParser | None
    ) -> None:
        """Start with nothing; without a parser all text is content."""
        keeps_special = parser is not None and parser.needs_special_tokens
        decode = partial(tokenizer.decode, keep_special=True) if keeps_special else tokenizer.decode
        self.num_reasoning_tokens = 0
        self._num_undecided = 0
        self._was_reasoning = False
        self._detokenizer = Detokenizer(decode)
        self._parser = parser
        self._stops = StopMatcher(params.stop, is_shown=params.include_stop_str_in_output)

    @property
    def has_tool_calls(self) -> bool:
        """Whether the model began any call."""
        return self._parser is not None and self._parser.num_tool_calls > 0

    def push(self, token_id: int, *, may_stop: bool) -> Piece:
        """Take a token; `may_stop` is false while stop strings are not looked for."""
        parsed = self._parsed(self._detokenizer.push(token_id))
        if self._parser is not None:
            self._count(parsed)
        return self._piece(parsed, may_stop=may_stop)

    def finish(self, *, is_cut: bool = False) -> Piece:
        """Everything held back, once it is known that no token follows.

        `is_cut` when the answer's length ended it: a call that had begun then leaves no markup.
        """
        piece = self._piece(self._parsed(self._detokenizer.flush()), may_stop=True)
        if self._parser is not None and not piece.is_stopped:
            piece.extend(self._piece(self._parser.flush(is_cut=is_cut), may_stop=True))
        if not piece.is_stopped:
            piece.content += self._stops.flush()
        if self._was_reasoning:
            self.num_reasoning_tokens += self._num_undecided
        return piece

    def _parsed(self, text: str) -> ParsedText:
        if self._parser is None or not text:
            return ParsedText(content=text)
        return self._parser.push(text)

    def _piece(self, parsed: ParsedText, *, may_stop: bool) -> Piece:
        if not may_stop:
            return Piece(parsed.content, parsed.reasoning, parsed.tool_calls)
        result = self._stops.push(parsed.content)
        calls = () if result.is_stopped else parsed.tool_calls
        return Piece(result.text, parsed.reasoning, calls, result.is_stopped)

    def _count(self, parsed: ParsedText) -> None:
        """A token that shows nothing belongs to what shows next, or last where nothing does."""
        self._num_undecided += 1
        if parsed.reasoning:
            self.num_reasoning_tokens += self._num_undecided
        if parsed.reasoning or parsed.content or parsed.tool_calls:
            self._num_undecided = 0
            self._was_reasoning = bool(parsed.reasoning) and not parsed.content


def join(pieces: Sequence[Piece]) -> Piece:
    """Pieces as one."""
    whole = Piece()
    for piece in pieces:
        whole.extend(piece)
    return whole
