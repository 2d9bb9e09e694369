"""Telling apart what may come out of JSON."""

from __future__ import annotations

from typing import Any, cast


def as_object(value: object) -> dict[str, Any] | None:
    """`value` if it is a JSON object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """`value` if it is a JSON array."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def has_lone_surrogate(text: str) -> bool:
    """Whether JSON's escapes left half a character in `text`, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
