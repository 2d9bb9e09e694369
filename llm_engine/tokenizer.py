"""Text to tokens and back, through the tokenizer that came with the weights."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, cast

from llm_engine.chat_template import to_template_messages
from llm_engine.errors import InvalidRequest, UnsupportedModel
from llm_engine.types import ChatMessage
from llm_engine.weights.resolve import ModelSource


class Tokenizer:
    """A fast tokenizer with its chat template. May be used by several threads.

    Source: the transformers tokenizer classes, which know every model's files.
    """

    def __init__(self, hf_tokenizer: Any) -> None:  # noqa: ANN401 - transformers is untyped here
        """Wrap a fast tokenizer of transformers."""
        self._hf = hf_tokenizer
        self._backend = hf_tokenizer.backend_tokenizer
        self._lock = Lock()
        self._is_byte_level = _is_byte_level(json.loads(self._backend.to_str()))
        self._byte_of = _byte_level_alphabet()
        self._added: Mapping[int, str] = {
            token_id: token.content
            for token_id, token in self._backend.get_added_tokens_decoder().items()
        }

    @classmethod
    def load(cls, source: ModelSource) -> "Tokenizer":
        """Build from the model's folder, or from a GGUF file's metadata.

        Raises: UnsupportedModel if there is no fast tokenizer.
        """
        try:
            hf_tokenizer = _from_gguf(source.path) if source.kind == "gguf" else _auto(source.path)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise UnsupportedModel(f"no tokenizer in {source.path}: {error}") from error
        if not getattr(hf_tokenizer, "is_fast", False):
            raise UnsupportedModel(f"{source.path} has no fast tokenizer (tokenizer.json)")
        return cls(hf_tokenizer)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-sequence token."""
        return self._hf.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with the model's usual special tokens around it."""
        with self._lock:
            return list(self._backend.encode(text, add_special_tokens=True).ids)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens of a conversation, ready for the assistant's next turn.

        Raises: InvalidRequest for an unknown role, or when the template refuses the messages.
        """
        from jinja2 import TemplateError

        template = self._hf.chat_template
        if not template:
            raise InvalidRequest(
                "this model has no chat template: send prompt_token_ids instead of messages",
                param="messages",
            )
        entries = to_template_messages(messages, str(template))
        try:
            text = self._hf.apply_chat_template(entries, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        with self._lock:
            return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens without the special ones; U+FFFD for bytes that form no character."""
        with self._lock:
            return self._backend.decode(list(token_ids), skip_special_tokens=True)

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


def _auto(folder: Path) -> Any:  # noqa: ANN401 - transformers is untyped here
    from transformers import AutoTokenizer

    load = cast(Any, AutoTokenizer).from_pretrained
    return load(str(folder), local_files_only=True, trust_remote_code=False)


def _from_gguf(path: Path) -> Any:  # noqa: ANN401 - transformers is untyped here
    """The class that transformers chooses for the family; choosing would parse the file again."""
    from transformers import PreTrainedTokenizerFast

    load = cast(Any, PreTrainedTokenizerFast).from_pretrained
    return load(str(path.parent), gguf_file=path.name, local_files_only=True)


def _is_byte_level(backend: Mapping[str, Any]) -> bool:
    decoder: dict[str, Any] = backend.get("decoder") or {}
    parts: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte: printable bytes stand for themselves, others from U+0100 upwards.

    Source: the byte-level BPE of GPT-2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + offset): byte for offset, byte in enumerate(others)})
    return alphabet
