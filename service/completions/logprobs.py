"""The classic shape of log-probabilities: four lists side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.protocol import TokenLogprob

_CONTINUATION = range(0x80, 0xC0)


class ClassicLogprobs:
    """Collects `tokens`, `token_logprobs`, `top_logprobs` and `text_offset` of one choice.

    Offsets are in characters of the choice's whole text, an echoed prompt included; a token that
    begins inside a character has the offset of that character.
    """

    def __init__(self, num_top: int) -> None:
        """Start at offset 0; `num_top` alternatives were asked for."""
        self._num_top = num_top
        self._num_chars = 0
        self._whole = self._empty()

    @property
    def whole(self) -> dict[str, Any]:
        """Everything so far."""
        return self._whole

    def add_first(self, text: str) -> dict[str, Any]:
        """The first token of an echoed prompt, which nothing comes before: it has no score."""
        piece = self._empty()
        self._append(piece, text, None, None)
        self._num_chars += len(text)
        return self._keep(piece)

    def add(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """More tokens; returns the lists of these alone."""
        piece = self._empty()
        for entry in entries:
            begins_inside = bool(entry.bytes) and entry.bytes[0] in _CONTINUATION
            self._num_chars -= begins_inside
            self._append(piece, entry.token, entry.logprob, self._top(entry))
            self._num_chars += begins_inside
            self._num_chars += sum(byte not in _CONTINUATION for byte in entry.bytes)
        return self._keep(piece)

    def _append(
        self, piece: dict[str, Any], token: str, logprob: float | None, top: object
    ) -> None:
        piece["tokens"].append(token)
        piece["token_logprobs"].append(logprob)
        piece["text_offset"].append(self._num_chars)
        if piece["top_logprobs"] is not None:
            piece["top_logprobs"].append(top)

    def _keep(self, piece: dict[str, Any]) -> dict[str, Any]:
        for name, values in piece.items():
            if values is not None:
                self._whole[name] += values
        return piece

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest, and the token itself where it is none of them."""
        top = {other.token: other.logprob for other in entry.top}
        return top if entry.token in top else top | {entry.token: entry.logprob}

    def _empty(self) -> dict[str, Any]:
        top: list[Any] | None = [] if self._num_top else None
        return {"tokens": [], "token_logprobs": [], "top_logprobs": top, "text_offset": []}
