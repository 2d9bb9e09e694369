"""The lower bound of a text's tokens: never above them, and near enough to be of use."""

import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from llm_engine.loader import LoadedModel
from llm_engine.token_bound import TokenBound, bound_decision, why_unbounded
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

CHAR = {byte: char for char, byte in byte_level_alphabet().items()}


def spelled(text: str) -> list[str]:
    return [CHAR[byte] for byte in text.encode()]


def byte_level(*words: str, normalizer: normalizers.Normalizer | None = None) -> Backend:
    """A byte-level BPE that also has these words."""
    vocab = {char: byte for byte, char in CHAR.items()}
    merges: list[tuple[str, str]] = []
    for word in words:
        left = ""
        for char in spelled(word):
            if left and left + char not in vocab:
                merges.append((left, char))
                vocab[left + char] = len(vocab)
            left += char
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return backend


def metaspace() -> Backend:
    """A BPE over characters that spells the unknown ones in bytes."""
    words = ["a", "b", "▁", "▁a", "▁▁", "ab", "<unk>"]
    vocab = {token: i for i, token in enumerate([*words, *(f"<0x{b:02X}>" for b in range(256))])}
    merges = [("▁", "a"), ("▁", "▁"), ("a", "b")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def without_some_bytes() -> Backend:
    """As those trained without them: they leave no token at all."""
    vocab = {char: byte for byte, char in CHAR.items() if byte not in "zé".encode()}
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(vocab)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


KINDS: dict[str, Callable[[], Backend]] = {
    "byte level": lambda: byte_level("hello", "  ", "        ", "é", "你好"),
    "normal form C": lambda: byte_level("hello", "é", "ḗ", "각", normalizer=normalizers.NFC()),
    "metaspace": metaspace,
    "without some bytes": without_some_bytes,
}
TEXTS = st.lists(
    st.sampled_from(
        [
            "hello",
            " ",
            "    ",
            "e",
            "e\u0301",
            "é",
            "e\u0304\u0301",
            "\u1100\u1161\u11a8",
            "\u1fbe\u0308\u0301",
            "🙂",
            "<|end|>",
            "▁",
            "a",
            "ab",
            "z",
            "你好",
            "\U00016121\U0001611e",
            "\u212a",
        ]
    )
    | st.text(max_size=4),
    max_size=20,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
def test_never_more_than_there_are(kind: str) -> None:
    backend = KINDS[kind]()
    assert why_unbounded(backend) is None
    bound = TokenBound.of(backend)

    @settings(max_examples=400, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert bound.at_least(text) <= len(backend.encode(text, add_special_tokens=False).ids)

    check()


def test_no_character_loses_more_than_is_allowed_for_in_normal_form_c() -> None:
    """Every character of Unicode, and what it decomposes into, against the library itself."""
    backend = byte_level(normalizer=normalizers.NFC())  # one token a byte: the bound is exact
    bound = TokenBound.of(backend)
    for point in range(0x80, sys.maxunicode + 1):
        if 0xD800 <= point < 0xE000 or 0xAC00 < point < 0xD7A3 or 0x4E00 < point < 0x9FFF:
            continue
        whole = chr(point)
        if not unicodedata.decomposition(whole):
            continue
        for text in (whole, "a" + unicodedata.normalize("NFD", whole) + "b"):
            assert bound.at_least(text) <= len(backend.normalizer.normalize_str(text).encode())


def test_a_bound_of_bytes_that_every_token_has_once_is_exact() -> None:
    bound = TokenBound.of(byte_level())
    assert bound.at_least("") == 0
    assert bound.at_least("héllo") == 6
    pair = TokenBound([b"ab", b"a", b"b", b"c"])
    assert TokenBound([b"ab", b"a"]).at_least("bbbba") == 1  # b has no token and is left out
    assert [pair.at_least(text) for text in ("a", "ab", "aba", "ccc", "abc")] == [1, 1, 2, 3, 2]


@pytest.mark.slow
def test_smollm2_bound_on_real_text(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert why_unbounded(tokenizer.backend) is None
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    num_tokens = len(tokenizer.encode_text(text))
    assert num_tokens / 12 < tokenizer.at_least(text) <= num_tokens


def unigram() -> Backend:
    return Backend(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))


def without_bytes() -> Backend:
    return Backend(models.BPE(vocab={"a": 0}, merges=[]))


def swallowing() -> Backend:
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<m>", lstrip=True)])
    return backend


def dropping() -> Backend:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(False)]
    )
    return backend


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (unigram, "model is Unigram"),
        (without_bytes, "no token for may be left out"),
        (swallowing, "'<m>' takes the white space"),
        (dropping, "Split may leave characters out"),
        (lambda: byte_level(normalizer=normalizers.Strip()), "Strip may shorten"),
        (
            lambda: byte_level(normalizer=normalizers.Replace("aa", "a")),
            "Replace may shorten",
        ),
    ],
)
def test_where_bytes_say_nothing(make: Callable[[], Backend], reason: str) -> None:
    why = why_unbounded(make())
    assert why is not None
    assert reason in why
    assert bound_decision(why).chosen == "by tokenising them"
