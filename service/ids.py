"""Identifiers that the gateway makes."""

from __future__ import annotations

import re
import secrets

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def make_chat_id() -> str:
    """A fresh `chatcmpl-…`."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def make_completion_id() -> str:
    """A fresh `cmpl-…`."""
    return f"cmpl-{secrets.token_hex(12)}"


def request_id(asked: str | None) -> str:
    """The caller's own request id where it is harmless, else a fresh one."""
    if asked is not None and _REQUEST_ID.fullmatch(asked):
        return asked
    return f"req_{secrets.token_hex(12)}"


def draw_seed() -> int:
    """A seed for a job that came without one; small enough to read out and type."""
    return secrets.randbelow(2**31)
