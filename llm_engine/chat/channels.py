"""Answers that are messages on channels, each with a header, as models trained on harmony write.

An answer goes on behind `<|start|>assistant`: `<|channel|>analysis<|message|>` and thoughts,
`<|end|><|start|>assistant<|channel|>final<|message|>` and what the caller is told, or
`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>` and a call's arguments. The
recipient may also stand before the channel.
Source: OpenAI's harmony response format, github.com/openai/harmony, docs/format.md.
"""

from dataclasses import dataclass
from typing import Literal

import regex

# Where the prompt leaves the answer: before its first channel, or inside a message.
ChannelStart = Literal["header", "analysis", "final"]


@dataclass(frozen=True, slots=True)
class ChannelMarkers:
    """How messages are told apart, and which channel is for what."""

    name: str
    start: str
    channel: str
    constrain: str
    message: str
    end: str
    finish: str
    call: str
    role: str = "assistant"
    thoughts: str = "analysis"
    notes: str = "commentary"
    answer: str = "final"
    namespace: str = "functions."

    @property
    def texts(self) -> tuple[str, ...]:
        """All markers."""
        return (
            self.start,
            self.channel,
            self.constrain,
            self.message,
            self.end,
            self.finish,
            self.call,
        )

    @property
    def turn(self) -> str:
        """From the end of one message to the channel of the next."""
        return f"{self.end}{self.start}{self.role}"

    def begin(self, channel: str) -> str:
        """The header of a message to nobody, up to its text."""
        return f"{self.channel}{channel}{self.message}"

    def begin_call(self, name: str) -> str:
        """The header of a call, up to its arguments."""
        recipient = f"to={self.namespace}{name}"
        return f"{self.channel}{self.notes} {recipient} {self.constrain}json{self.message}"

    def header(self, text: str) -> "Header":
        """Read what stands between `start` and `message`."""
        channel = regex.search(rf"{regex.escape(self.channel)}\s*(\w+)", text)
        recipient = regex.search(r"\bto=([^\s<]+)", text)
        return Header(
            channel=None if channel is None else channel[1],
            recipient=None if recipient is None else recipient[1],
        )

    def opened_by(self, prompt: str) -> ChannelStart:
        """Where a prompt that ends in an assistant's turn leaves the answer."""
        turn = prompt[prompt.rfind(self.start) + len(self.start) :]
        header, message, _ = turn.partition(self.message)
        if not message:
            return "header"
        return "analysis" if self.header(header).channel == self.thoughts else "final"


@dataclass(frozen=True, slots=True)
class Header:
    """A message's channel and whom it is for, where it says so."""

    channel: str | None
    recipient: str | None


HARMONY = ChannelMarkers(
    name="harmony",
    start="<|start|>",
    channel="<|channel|>",
    constrain="<|constrain|>",
    message="<|message|>",
    end="<|end|>",
    finish="<|return|>",
    call="<|call|>",
)
