"""The prompt as a part of the answer: its text, and which text its first token has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workers.protocol import PromptScored


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt's text, split after its first token (which has no score)."""

    text: str
    first: str


def echoed_prompt(prompt: str | tuple[int, ...], scored: PromptScored) -> EchoedPrompt:
    """The prompt as its tokens spell it.

    Of a text, the first token is what the other tokens leave over: nothing, where a model puts a
    token of its own in front.
    """
    rest = _bytes(entry.bytes for entry in scored.logprobs if entry is not None)
    if not isinstance(prompt, str):
        first = bytes(scored.first_bytes)
        text = (first + rest).decode(errors="replace")
        return EchoedPrompt(text, first.decode(errors="replace"))
    whole = prompt.encode("utf-8", "surrogatepass")
    left = whole[: len(whole) - len(rest)] if whole.endswith(rest) else bytes(scored.first_bytes)
    return EchoedPrompt(prompt, left.decode(errors="replace"))


def _bytes(pieces: Iterable[tuple[int, ...]]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)
