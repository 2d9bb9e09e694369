"""A line of a stream with a hole for its text, so that a token costs no walk over its chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.http.stream import json_text, sse

_HOLE = "\0"


class TextLine:
    """The line of a chunk that differs from token to token by one text."""

    def __init__(self, make_chunk: Callable[[str], Mapping[str, Any]]) -> None:
        """`make_chunk(text)` gives the chunk; NUL must be in no other string of it."""
        line = sse(make_chunk(_HOLE)).decode("ascii")
        hole = json_text(_HOLE)
        assert line.count(hole) == 1, "the text alone is a NUL"
        self._before, _, self._after = line.partition(hole)

    def fill(self, text: str) -> bytes:
        """The same bytes as `sse(make_chunk(text))`."""
        return f"{self._before}{json_text(text)}{self._after}".encode("ascii")
