"""A constraint that begins where the reasoning ends."""

import json
from dataclasses import dataclass
from typing import Protocol

from llm_engine.chat.families import ReasoningMarkers
from llm_engine.chat.stream_parser import ReasoningStart
from llm_engine.structured.grammar import ANSWER, Grammar

ANY_TEXT = "/(?s:.*)/"


class MarkerVocabulary(Protocol):
    """Which texts are single tokens that no other text can spell."""

    def literal(self, text: str) -> str:
        """A text as Lark."""
        ...

    def is_special(self, text: str) -> bool:
        """Whether it is one such token."""
        ...

    def is_ending(self, text: str) -> bool:
        """Whether it is one such token, and ends an answer."""
        ...


def until_marker(vocabulary: MarkerVocabulary, name: str, end: str) -> list[str]:
    """Rules for any text up to and with a marker, under a name in small letters."""
    if vocabulary.is_special(end):
        text = f"{name.upper()}_TEXT"
        return [f"{name}: {text} {vocabulary.literal(end)}", f"{text}: {ANY_TEXT}"]
    return [f"{name}[suffix={json.dumps(end)}]: {ANY_TEXT}"]


@dataclass(frozen=True, slots=True)
class ReasoningPrefix:
    """What may stand before the bound part: nothing, or reasoning in any words up to its end."""

    vocabulary: MarkerVocabulary
    markers: ReasoningMarkers | None
    start: ReasoningStart

    def until(self, name: str, end: str) -> list[str]:
        """See `until_marker`."""
        return until_marker(self.vocabulary, name, end)

    @property
    def lead(self) -> str:
        """The reference to be put before the bound part."""
        return {"off": "", "open": "thought ", "possible": "(thinking thought)? "}[self._state]

    @property
    def rules(self) -> list[str]:
        """The rules that the reference needs."""
        if self.markers is None or self._state == "off":
            return []
        rules = ["thought: thought_end SPACE?", r"SPACE: /[ \n]{1,4}/"]
        rules += self.until("thought_end", self.markers.end)
        if self._state == "possible":
            rules.append(f"thinking: {self.vocabulary.literal(self.markers.begin)}")
        return rules

    def before(self, answer: Grammar) -> Grammar:
        """The same constraint, on what follows the reasoning."""
        if self._state == "off":
            return answer
        start = "\n".join([f"start: {self.lead}@{ANSWER}", *self.rules])
        return Grammar(answer.parts, start=start, is_cheap=answer.is_cheap, param=answer.param)

    @property
    def _state(self) -> ReasoningStart:
        return "off" if self.markers is None else self.start
