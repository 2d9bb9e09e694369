"""At least how many tokens a text has, counted from its bytes without tokenising it."""

import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend
from tokenizers import models

from kernels.ledger import Decision
from kernels.spec import Tier
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

Bytes = npt.NDArray[np.uint8]

_KEEPING = ("ByteLevel", "Digits", "Metaspace", "Split")
_SPACE = "\u2581"
_FIRST_OF_FOUR = 0xF0


class TokenBound:
    """A lower bound that costs one walk over the bytes.

    A token of n bytes takes of each of its bytes b the share 1/n, at least 1/longest(b), where
    longest(b) is the length of the longest token that holds b. The shares of a token add up to 1,
    so a text has no fewer tokens than the sum of 1/longest(b) over its bytes. That holds where
    no byte is lost on the way into tokens (see `why_unbounded`), but those that have none.
    """

    def __init__(self, tokens: Sequence[bytes], *, is_nfc: bool = False) -> None:
        """For a vocabulary of these tokens; `is_nfc` where texts are put in normal form C first."""
        self._is_nfc = is_nfc
        known = {token[0] for token in tokens if len(token) == 1}
        longest: dict[int, int] = {}
        for token in sorted(tokens, key=len, reverse=True):
            for byte in known.intersection(token):
                longest.setdefault(byte, len(token))
            if len(longest) == len(known):
                break
        self._longest: Mapping[int, int] = longest

    @classmethod
    def of(cls, backend: Backend) -> "TokenBound":
        """For a tokenizer of which `why_unbounded` has nothing to say."""
        return cls([*_vocabulary(backend)], is_nfc="NFC" in _normalizers(backend))

    def at_least(self, text: str) -> int:
        """A number of tokens that the text surely has, without any put around it."""
        raw = np.frombuffer(text.encode(), dtype=np.uint8)
        if self._is_nfc and not _is_normal(text, raw):
            raw = _kept_by_nfc(raw)
        counts: list[int] = np.bincount(raw, minlength=256).tolist()
        shares = (Fraction(counts[byte], size) for byte, size in self._longest.items())
        return math.ceil(sum(shares))


def why_unbounded(backend: Backend) -> str | None:
    """Why a text's bytes say nothing of its tokens; None where they do."""
    for normalizer in _normalizers(backend):
        if normalizer not in ("NFC", "Prepend", "spaces"):
            return f"its normaliser {normalizer} may shorten a text"
    for split in _splits(backend):
        if split["type"] not in _KEEPING or split.get("behavior") == "Removed":
            return f"its pre-tokenizer {split['type']} may leave characters out"
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip:
            return f"its token {token.content!r} takes the white space beside it"
    model = backend.model
    if not isinstance(model, models.BPE):
        return f"its model is {type(model).__name__}, where a token may stand for any characters"
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return "its tokens have marks for where a word begins or ends"
    if _is_byte_level(backend) or _falls_back_to_bytes(backend):
        return None
    return "characters that it has no token for may be left out"


def bound_decision(reason: str | None) -> Decision:
    """How a prompt that is far too long is found, as a line of the ledger."""
    return Decision(
        kind="chat",
        where="llm engine, prompts",
        what="length of long prompts",
        asked="auto",
        chosen="bounded by their bytes" if reason is None else "by tokenising them",
        tier=Tier.VENDOR,
        source="default",
        reasons=(reason or "every byte of a text is part of some token, of known length",),
        evidence="run on CPU",
    )


def _falls_back_to_bytes(backend: Backend) -> bool:
    """Whether characters without a token are spelled in bytes, each of which has one."""
    names = (f"<0x{byte:02X}>" for byte in range(256))
    has_fallback = backend.model.byte_fallback
    return has_fallback and all(backend.token_to_id(name) is not None for name in names)


def _vocabulary(backend: Backend) -> Iterator[bytes]:
    """Each token as the longest text that it stands for."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    yield from (content.encode() for content in added)
    byte_of = byte_level_alphabet() if _is_byte_level(backend) else None
    for token in backend.get_vocab(with_added_tokens=False):
        if byte_of is not None:
            yield bytes(byte_of[char] for char in token if char in byte_of)
        elif len(token) == 6 and token.startswith("<0x"):
            yield bytes([int(token[3:5], 16)])
        else:
            # The sign for a space is written for a space, but may also stand in a text.
            yield token.encode() + (b" " if _SPACE in token else b"")


def _is_normal(text: str, raw: Bytes) -> bool:
    """Whether normal form C changes nothing, by any version of Unicode.

    Versions later than Python's may compose more, all of it in characters of four bytes.
    """
    has_four = bool((raw >= _FIRST_OF_FOUR).any())
    return not has_four and unicodedata.is_normalized("NFC", text)


def _kept_by_nfc(raw: Bytes) -> Bytes:
    """ASCII that no other character follows, with which it might become one."""
    is_ascii = raw < 0x80
    return raw[is_ascii & np.append(is_ascii[1:], True)]


def _is_byte_level(backend: Backend) -> bool:
    return any(split["type"] == "ByteLevel" for split in _splits(backend))


def _normalizers(backend: Backend) -> list[str]:
    return [
        "spaces" if (part.get("pattern"), part.get("content")) == ({"String": " "}, _SPACE)
        else str(part["type"])
        for part in _flat(backend.normalizer, "normalizers")
    ]  # fmt: skip


def _splits(backend: Backend) -> list[dict[str, Any]]:
    return _flat(backend.pre_tokenizer, "pretokenizers")


def _flat(part: object, key: str) -> list[dict[str, Any]]:
    """The parts of a sequence, or the one part, as plain values."""
    return [] if part is None else _flattened(json.loads(cast(Any, part).__getstate__()), key)


def _flattened(state: dict[str, Any], key: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [inner for part in state[key] for inner in _flattened(part, key)]
