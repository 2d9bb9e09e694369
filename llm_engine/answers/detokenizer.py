"""Text from tokens, one token at a time, never showing a part of a character."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# A character takes at most four bytes, so at most three can be waiting for the last one.
_MAX_INCOMPLETE = 3
_MAX_WINDOW_TOKENS = 32


class Detokenizer:
    """Turns tokens into text pieces whose concatenation is the decoded whole.

    Only the tokens of a short window are decoded again at each step: those since the last clean
    cut, with the ones before it as context, since decoders treat the beginning of a text apart.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Use `decode`, which maps token ids to text, with U+FFFD for bytes it cannot map."""
        self._decode = decode
        self._context: list[int] = []
        self._context_text = ""
        self._fresh: list[int] = []
        self._num_shown = 0

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is certain now, possibly none."""
        self._fresh.append(token_id)
        text = self._fresh_text()
        if text is None:
            return ""
        num_held = _num_incomplete(text)
        delta = text[self._num_shown : len(text) - num_held]
        self._num_shown += len(delta)
        if num_held == 0:
            self._cut(len(self._fresh))
        elif len(self._fresh) > _MAX_WINDOW_TOKENS:
            self._cut_inside(text)
        return delta

    def flush(self) -> str:
        """The rest of the text, once it is known that no token follows."""
        text = self._fresh_text()
        if text is None:
            text = self._decode(self._fresh)
        delta = text[self._num_shown :]
        self._cut(len(self._fresh))
        return delta

    def _fresh_text(self) -> str | None:
        """Text of the fresh tokens, or None while they change the look of their context."""
        text = self._decode([*self._context, *self._fresh])
        if not text.startswith(self._context_text):
            return None
        return text[len(self._context_text) :]

    def _cut(self, num_tokens: int) -> None:
        context_text = self._decode(self._fresh[:num_tokens])
        if context_text:
            self._context = self._fresh[:num_tokens]
            self._context_text = context_text
        self._fresh = self._fresh[num_tokens:]
        self._num_shown = 0

    def _cut_inside(self, text: str) -> None:
        """Shorten a window of bytes that form no character, at a place that changes nothing."""
        for num_tokens in range(len(self._fresh) - 4, 0, -1):
            head = self._decode(self._fresh[:num_tokens])
            tail = self._decode(self._fresh[num_tokens:])
            if head + tail == text and len(head) <= self._num_shown:
                num_shown = self._num_shown - len(head)
                self._cut(num_tokens)
                self._num_shown = num_shown
                return


def _num_incomplete(text: str) -> int:
    num_held = 0
    while num_held < _MAX_INCOMPLETE and text[: len(text) - num_held].endswith(REPLACEMENT):
        num_held += 1
    return num_held
