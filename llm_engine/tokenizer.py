"""Text to tokens and back, through the tokenizer that came with the weights."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from kernels.ledger import Decision
from llm_engine.token_bound import TokenBound, bound_decision, why_unbounded
from llm_engine.token_segments import SegmentCache, segment_decision, segment_rule
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet, read_gguf
from llm_engine.weights.resolve import ModelSource
from llm_engine.weights.tokenizer_parts import TokenizerParts, read_folder


class Tokenizer:
    """A fast tokenizer with its chat template. May be used by several threads.

    The library's object is only read, which it allows to many threads at once; so a long prompt
    holds up no answer that is being decoded.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        """Wrap what a model's files describe."""
        self._parts = parts
        self._backend = parts.backend
        self._byte_of = byte_level_alphabet()
        self._rule = segment_rule(parts.backend)
        self._segments = SegmentCache(self._encode_text)
        self._unbounded = why_unbounded(parts.backend)
        self._added: Mapping[int, str] = {
            token_id: token.content
            for token_id, token in self._backend.get_added_tokens_decoder().items()
        }

    @classmethod
    def load(cls, source: ModelSource) -> "Tokenizer":
        """Build from the model's folder, or from a GGUF file's metadata.

        Raises: UnsupportedModel if there is no fast tokenizer.
        """
        return cls(read_gguf(source.path) if source.kind == "gguf" else read_folder(source.path))

    @property
    def backend(self) -> Backend:
        """The tokenizers library's object; it is not to be changed."""
        return self._backend

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Special tokens by role: bos_token, eos_token, unk_token, pad_token where they exist."""
        return self._parts.special_tokens

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template."""
        return self._parts.chat_template

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-sequence token."""
        token = self.special_tokens.get("eos_token")
        return None if token is None else self._backend.token_to_id(token)

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text, added ones included; a model may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with the model's usual special tokens around it."""
        return self._encode(text, add_special_tokens=True)

    def encode_text(self, text: str, *, salt: str = "") -> list[int]:
        """Tokens of a text as it stands; special tokens written in it are recognised.

        What stands between special tokens is kept for the next text of the same `salt`.
        """
        if isinstance(self._rule, str):
            return self._encode_text(text)
        return self._segments.tokens(self._rule.parts(text), salt)

    def at_least(self, text: str) -> int:
        """Tokens that a text surely has, told in milliseconds a megabyte; 0 where it cannot be."""
        return 0 if self._bound is None else self._bound.at_least(text)

    def decisions(self) -> tuple[Decision, ...]:
        """Whether parts of texts are kept, and how long ones are measured, for the ledger."""
        return segment_decision(self._rule), bound_decision(self._unbounded)

    def decode(self, token_ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Text of tokens; U+FFFD for bytes that form no character.

        Special tokens leave no text unless `keep_special`.
        """
        return self._backend.decode(list(token_ids), skip_special_tokens=not keep_special)

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, possibly a part of a character."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return bytes(self._byte_of[char] for char in token if char in self._byte_of)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # A batch of one: unlike `encode`, it lets go of the GIL while it works.
        return list(
            self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        )

    def _encode_text(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=False)

    @cached_property
    def _bound(self) -> TokenBound | None:
        return TokenBound.of(self._backend) if self._unbounded is None else None

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = self._backend.decoder
        if decoder is None:
            return False
        state: dict[str, Any] = json.loads(decoder.__getstate__())
        parts: list[dict[str, Any]] = state.get("decoders", [state])
        return any(part.get("type") == "ByteLevel" for part in parts)
