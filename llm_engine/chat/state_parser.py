"""What the output parsers share: a state, the text held back in it, and what was found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llm_engine.chat.call_deltas import joined
from llm_engine.chat.held import num_held, num_surely_begun
from llm_engine.chat.parser import ParsedText
from llm_engine.types import ToolCallDelta


@dataclass(slots=True)
class Found:
    """Pieces that the next `ParsedText` will hold."""

    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[ToolCallDelta] = field(default_factory=list[ToolCallDelta])


class StateParser:
    """An `OutputParser` that is in one state at a time.

    A state is a method that is told whether the text is the last. It takes from `_held`, adds to
    `_found`, names the next state in `_step`, and returns whether to go on with that one.
    """

    def __init__(
        self, step: Callable[[bool], bool], new_id: Callable[[], str], *, needs_special_tokens: bool
    ) -> None:
        """Begin in the state `step`."""
        self._step = step
        self._new_id = new_id
        self._needs_special_tokens = needs_special_tokens
        self._held = ""
        self._found = Found()
        self._num_calls = 0
        self._is_cut = False

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the text must be decoded with special tokens shown."""
        return self._needs_special_tokens

    @property
    def num_tool_calls(self) -> int:
        """Calls begun so far."""
        return self._num_calls

    def push(self, text: str) -> ParsedText:
        """Take the next piece of decoded text."""
        self._held += text
        return self._run(is_last=False)

    def flush(self, *, is_cut: bool = False) -> ParsedText:
        """Everything held back; of an answer that was cut, nothing of a marker or call begun."""
        self._is_cut = is_cut
        return self._run(is_last=True)

    def _run(self, *, is_last: bool) -> ParsedText:
        while self._step(is_last):
            pass
        found, self._found = self._found, Found()
        return ParsedText("".join(found.content), "".join(found.reasoning), joined(found.calls))

    def _num_pending(self, markers: Sequence[str], is_last: bool) -> int:
        """How many characters at the end belong to a marker, for all that is known."""
        if not is_last:
            return num_held(self._held, markers)
        return num_surely_begun(self._held, markers) if self._is_cut else 0

    def _begin_call(self, name: str, arguments: str = "") -> None:
        self._found.calls.append(ToolCallDelta(self._num_calls, self._new_id(), name, arguments))
        self._num_calls += 1

    def _extend_call(self, arguments: str) -> None:
        self._found.calls.append(ToolCallDelta(self._num_calls - 1, None, None, arguments))
