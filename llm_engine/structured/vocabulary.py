"""A model's vocabulary as the grammar library wants it, built when first needed."""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

from llguidance import LLTokenizer

from llm_engine.errors import InvalidRequest


class _Backend(Protocol):
    def to_str(self) -> str: ...

    def get_added_tokens_decoder(self) -> Any: ...  # noqa: ANN401 - untyped there


class Vocabulary:
    """Tokens with their bytes, the end-of-sequence tokens, and how a marker is written.

    Building takes some tenths of a second, once. Safe to use from several threads.
    """

    def __init__(self, backend: _Backend, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Over a tokenizer of the tokenizers library; `vocab_size` counts the model's logits."""
        self.eos_token_ids = tuple(sorted(eos_token_ids))
        self.size = vocab_size
        self._backend = backend
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None

    @cached_property
    def tokenizer_json(self) -> str:
        """The tokenizer in the tokenizers library's own form."""
        return self._backend.to_str()

    @property
    def tokenizer(self) -> LLTokenizer:
        """The library's vocabulary.

        Raises: InvalidRequest for a tokenizer that the library cannot follow.
        """
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._build()
            return self._tokenizer

    def literal(self, text: str) -> str:
        """A text as Lark: special tokens by their number, the rest as string literals."""
        if not text:
            return '""'
        if self._special_pattern is None:
            return json.dumps(text)
        pieces = self._special_pattern.split(text)
        return " ".join(self._piece(piece) for piece in pieces if piece)

    def is_special(self, text: str) -> bool:
        """Whether a marker is one token that no text can spell."""
        return text in self._special_ids

    def is_ending(self, text: str) -> bool:
        """Whether a marker is a token that ends an answer."""
        return self._special_ids.get(text) in self.eos_token_ids

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        added = self._backend.get_added_tokens_decoder()
        tokenizer = self.tokenizer
        return {
            token.content: token_id
            for token_id, token in added.items()
            if token_id < tokenizer.vocab_size and tokenizer.is_special_token(token_id)
        }

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        if not self._special_ids:
            return None
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def _piece(self, text: str) -> str:
        token_id = self._special_ids.get(text)
        return json.dumps(text) if token_id is None else f"<[{token_id}]>"

    def _build(self) -> LLTokenizer:
        if not self.eos_token_ids:
            raise InvalidRequest(
                "this model names no end-of-sequence token, so an answer bound to a form could not "
                "end: send the request without response_format",
                param="response_format",
            )
        try:
            return LLTokenizer(
                self.tokenizer_json, n_vocab=self.size, eos_token=list(self.eos_token_ids)
            )
        except ValueError as error:
            raise InvalidRequest(
                f"this model's tokenizer cannot be bound to a form: {error}",
                param="response_format",
            ) from error
