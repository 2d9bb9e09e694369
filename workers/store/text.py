"""Texts that come from callers, checked before they reach a column."""

from __future__ import annotations

from workers.errors import InvalidText


def check_text(field: str, text: str, *, is_word: bool = False) -> None:
    """Let through what every database can keep.

    Raises:
        InvalidText: a NUL or half a surrogate pair in it, or, for a word, white space or nothing.
    """
    if not is_storable(text):
        raise InvalidText(field, "holds a NUL character or half a surrogate pair")
    if is_word and text.split() != [text]:
        raise InvalidText(field, "must be one word without white space")


def is_storable(text: str) -> bool:
    """Whether every database can keep `text`; nothing stored can equal a text that is not."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
