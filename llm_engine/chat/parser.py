"""What a choice must know of a model's output format: text in; content, reasoning, calls out."""

from dataclasses import dataclass
from typing import Protocol

from llm_engine.types import ToolCallDelta


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What a piece of text added to the answer; `reasoning` comes before `content`, then calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class OutputParser(Protocol):
    """Splits one choice's text as it grows.

    Invariants: the parts joined depend on the text only, never on how it was cut into pieces;
    no more is held back than could still become a marker; nothing but markers is lost. Of an
    answer that was cut short, a marker or call that had begun is no content either.
    """

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the text must be decoded with special tokens shown, as markers are among them."""
        ...

    @property
    def num_tool_calls(self) -> int:
        """Calls begun so far; with one or more, a choice that stops ends with "tool_calls"."""
        ...

    def push(self, text: str) -> ParsedText:
        """Take the next piece of decoded text."""
        ...

    def flush(self, *, is_cut: bool = False) -> ParsedText:
        """Everything held back, once it is known that nothing follows.

        `is_cut` when the answer's length ended it, and not the model.
        """
        ...
