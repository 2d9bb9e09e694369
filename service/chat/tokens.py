"""Tokens with their log-probabilities, in the chat's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.protocol import TokenLogprob


def logprob_entries(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """One object per token; `top_logprobs` is always a list."""
    return [
        {**_entry(token), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.bytes)}
