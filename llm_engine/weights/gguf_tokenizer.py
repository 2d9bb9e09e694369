"""The tokenizer that a GGUF file's metadata describes, built for the tokenizers library.

Source: the GGUF specification (tokenizer.ggml.*); the splits of the models' own tokenizer.json,
as llama.cpp names them in `tokenizer.ggml.pre`.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.gguf_file import GgufFile, StringArray
from llm_engine.weights.tokenizer_parts import TokenizerParts, frame

_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"llama-bpe": _LLAMA3, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "tekken": _TEKKEN}
_WHOLE_WORDS_FIRST = ("llama-bpe", "tekken")  # a word of the vocabulary is taken without merging
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_PLAIN = ("default", "gpt-2")
_SPACE = "\u2581"


def read_gguf(path: Path) -> TokenizerParts:
    """Build the tokenizer of a GGUF file.

    Raises: UnsupportedModel for a kind of vocabulary or a split that is not known.
    """
    try:
        fields = GgufFile.open(path).fields
        tokens = _strings(fields, "tokens")
        merges = _strings(fields, "merges") if "tokenizer.ggml.merges" in fields else None
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise UnsupportedModel(f"no tokenizer in {path}: {error}") from error
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2" and merges is not None:
        backend = _byte_level(path, tokens, merges, str(fields.get("tokenizer.ggml.pre")))
    elif kind == "llama":
        backend = _sentencepiece(tokens, fields)
    else:
        raise UnsupportedModel(
            f"{path} has a vocabulary of kind {kind!r}; supported: gpt2 with merges, llama"
        )
    _add_marked(backend, tokens, fields.get("tokenizer.ggml.token_type") or ())
    special_tokens = {
        name: tokens[int(fields[f"tokenizer.ggml.{key}"])]
        for name, key in _SPECIAL_IDS.items()
        if f"tokenizer.ggml.{key}" in fields
    }
    adds_bos = fields.get("tokenizer.ggml.add_bos_token", kind == "llama")
    adds_eos = fields.get("tokenizer.ggml.add_eos_token", False)
    bos = special_tokens.get("bos_token") if adds_bos else None
    eos = special_tokens.get("eos_token") if adds_eos else None
    backend.add_special_tokens([AddedToken(token) for token in special_tokens.values()])
    frame(backend, bos=bos, eos=eos)
    return TokenizerParts(backend, special_tokens, fields.get("tokenizer.chat_template"))


def byte_level_alphabet() -> dict[str, int]:
    """Character to byte: printable bytes stand for themselves, others from U+0100 upwards.

    Source: the byte-level BPE of GPT-2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + offset): byte for offset, byte in enumerate(others)})
    return alphabet


def _strings(fields: Mapping[str, Any], key: str) -> list[str]:
    strings = fields[f"tokenizer.ggml.{key}"]
    if not isinstance(strings, StringArray):
        raise ValueError(f"tokenizer.ggml.{key} is no list of strings")
    return strings.read()


def _byte_level(path: Path, tokens: Sequence[str], merges: Sequence[str], split: str) -> Tokenizer:
    backend = Tokenizer(
        models.BPE(
            vocab=_spelled_in_bytes(tokens),
            merges=[_pair(merge) for merge in merges],
            ignore_merges=split in _WHOLE_WORDS_FIRST,
        )
    )
    byte_level = pre_tokenizers.ByteLevel
    if split in _PLAIN:
        backend.pre_tokenizer = byte_level(add_prefix_space=False)
    elif split in _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        parts = [digits, byte_level(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    elif split in _SPLITS:
        words = pre_tokenizers.Split(Regex(_SPLITS[split]), behavior="isolated")
        parts = [words, byte_level(add_prefix_space=False, use_regex=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    else:
        known = sorted((*_PLAIN, *_DIGITS, *_SPLITS))
        raise UnsupportedModel(
            f"{path} splits text as {split!r} (tokenizer.ggml.pre); supported: {', '.join(known)}"
        )
    if "qwen" in split:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _spelled_in_bytes(tokens: Sequence[str]) -> dict[str, int]:
    """Tokens that hold characters outside the byte alphabet are spelled in it."""
    alphabet = byte_level_alphabet()
    foreign = set("".join(tokens)).difference(alphabet)
    if not foreign:
        return {token: index for index, token in enumerate(tokens)}
    spelling = {byte: char for char, byte in alphabet.items()}
    return {
        token
        if foreign.isdisjoint(token)
        else "".join(spelling[byte] for byte in token.encode()): index
        for index, token in enumerate(tokens)
    }


def _pair(merge: str) -> tuple[str, str]:
    first, _, second = merge.partition(" ")
    return first, second


def _sentencepiece(tokens: Sequence[str], fields: Mapping[str, Any]) -> Tokenizer:
    """Byte-pair encoding of sentencepiece: merges follow from the vocabulary's scores."""
    scores: Sequence[float] = fields["tokenizer.ggml.scores"]
    vocab = {token: index for index, token in enumerate(tokens)}
    has_prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    merges = _merges_by_score(vocab, scores)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if has_prefix else "never", split=False
    )
    steps = (decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse())
    first = (decoders.Strip(content=" ", left=1),) if has_prefix else ()
    backend.decoder = decoders.Sequence([*steps, *first])
    return backend


def _merges_by_score(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first; of equals, longer halves first."""
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        made = [(vocab[a], vocab[b], a, b) for a, b in halves if a in vocab and b in vocab]
        ranked.extend((scores[index], len(a), len(b), a, b) for _, _, a, b in sorted(made))
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    return [(a, b) for *_, a, b in ranked]


def _add_marked(backend: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Control tokens are special, user-defined ones whole; those not in the vocabulary are left."""
    for kind, is_special in ((_CONTROL, True), (_USER_DEFINED, False)):
        marked = [token for token, its in zip(tokens, kinds, strict=False) if its == kind]
        added = [
            AddedToken(token, normalized=False, special=is_special)
            for token in marked
            if backend.token_to_id(token) is not None
        ]
        backend.add_tokens(added)
