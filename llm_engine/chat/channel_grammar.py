"""The grammar of an answer on channels: thoughts in any words, then calls or the answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_engine.chat.channels import ChannelMarkers, ChannelStart
from llm_engine.chat.reasoning_grammar import ANY_TEXT, MarkerVocabulary, until_marker
from llm_engine.chat.tool_grammar import CHEAP_TOOLS, CheckedTool, is_bound, offered_by
from llm_engine.structured.bounds import OutOfBounds
from llm_engine.structured.grammar import ANSWER, Grammar, schema_part
from llm_engine.types import ToolUse


class ChannelGrammar:
    """Writes grammars for answers that begin where the prompt left them."""

    def __init__(
        self, markers: ChannelMarkers, vocabulary: MarkerVocabulary, start: ChannelStart
    ) -> None:
        """The vocabulary writes markers; those that end an answer are left to the sampler."""
        self._markers = markers
        self._vocabulary = vocabulary
        self._start: ChannelStart = start

    def before(self, answer: Grammar) -> Grammar:
        """A constraint on the final channel's text; thoughts may come before it."""
        if self._start == "final":
            return answer
        lines = [f"start: {self._lead('thought')} {self._final(f'@{ANSWER}')}", *self._thoughts()]
        return Grammar(
            answer.parts, start="\n".join(lines), is_cheap=answer.is_cheap, param=answer.param
        )

    def of_calls(
        self, tools: Sequence[CheckedTool], use: ToolUse, answer: Grammar | None
    ) -> Grammar | None:
        """What the answer may be; None where nothing binds it.

        A call ends the turn, so there is one at most. A forced call may have thoughts before it;
        a free one notes to the caller too, and the final channel is its alternative.
        Raises: OutOfBounds for a forced call behind the beginning of a final message.
        """
        is_forced = use.mode == "required" or use.name is not None
        if not is_bound(tools, use, answer):
            return None
        if self._start == "final":
            if is_forced:
                raise OutOfBounds(
                    "a call is forced, but the last message is to be continued, and this model "
                    "calls in a message of its own: leave continue_final_message out"
                )
            return answer
        offered = offered_by(tools, use)
        parts, lines = self._calls(offered)
        body = " | ".join(f"call_{i}" for i in range(len(offered)))
        lead = self._lead("thought")
        if not is_forced and answer is not None:
            parts.update(answer.parts)
            body = f"{body} | {self._final(f'@{ANSWER}')}"
        elif not is_forced:
            lead = self._lead("(thought | note)")
            body = f"{body} | {self._literal(self._markers.begin(self._markers.answer))} FREE"
            lines += [f"FREE: {ANY_TEXT}", self._said("note", self._markers.notes)]
        is_cheap = len(offered) <= CHEAP_TOOLS and all(tool.schema.is_cheap for tool in offered)
        return Grammar(
            parts,
            start="\n".join([f"start: {lead} body", f"body: {body}", *lines, *self._thoughts()]),
            is_cheap=is_cheap and (answer is None or answer.is_cheap),
            param="tools",
        )

    def _calls(
        self, offered: Sequence[CheckedTool]
    ) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Parts and rules, `call_i` a whole message to a tool."""
        parts: dict[str, Mapping[str, Any]] = {}
        lines: list[str] = []
        for i, tool in enumerate(offered):
            schema = {"type": "object", **tool.schema.schema}
            parts[f"args_{i}"] = schema_part(schema, is_strict=tool.tool.strict)
            begin = self._literal(self._markers.begin_call(tool.tool.name))
            lines.append(f"call_{i}: {begin} @args_{i} {self._ending(self._markers.call)}")
        return parts, lines

    def _lead(self, messages: str) -> str:
        """Any number of messages, behind the rest of one that the prompt began."""
        opened = "rest_of_thought " if self._start == "analysis" else ""
        return f"{opened}{messages}*"

    def _thoughts(self) -> list[str]:
        marks = self._markers
        next_turn = self._literal(marks.turn.removeprefix(marks.end))
        return [
            self._said("thought", marks.thoughts),
            f"rest_of_thought: said {next_turn}",
            *until_marker(self._vocabulary, "said", marks.end),
        ]

    def _said(self, rule: str, channel: str) -> str:
        """A whole message to nobody, up to the channel of the next."""
        begin = self._literal(self._markers.begin(channel))
        return f"{rule}: {begin} rest_of_thought"

    def _final(self, answer: str) -> str:
        marks = self._markers
        begin = self._literal(marks.begin(marks.answer))
        return f"{begin} {answer} {self._ending(marks.finish)}"

    def _ending(self, marker: str) -> str:
        """Nothing where the marker ends the answer by itself, as the sampler then sees to it."""
        return "" if self._vocabulary.is_ending(marker) else f"({self._literal(marker)})?"

    def _literal(self, text: str) -> str:
        return self._vocabulary.literal(text) if text else json.dumps("")
