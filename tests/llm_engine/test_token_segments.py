"""Prompts tokenised by parts: the tokens of the whole, whatever the tokenizer."""

from collections.abc import Callable
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from llm_engine.loader import LoadedModel
from llm_engine.token_segments import (
    SegmentCache,
    SegmentRule,
    segment_decision,
    segment_rule,
)
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

SPECIAL = ("<s>", "<|a|>", "<|a|>b", "</s>")
MERGES = [("a", "b"), ("Ġ", "a"), ("ab", "a"), ("▁", "a"), ("▁", "▁"), ("Ġ", "Ġ"), ("Ċ", "Ċ")]


def backend_of(
    pre: pre_tokenizers.PreTokenizer | None = None,
    normalizer: normalizers.Normalizer | None = None,
    **flags: bool,
) -> Backend:
    """A small BPE over bytes, with special tokens of which one begins another."""
    chars = dict.fromkeys([*byte_level_alphabet(), "▁"])
    merged = [a + b for a, b in MERGES]
    vocab = {token: index for index, token in enumerate([*chars, *merged])}
    backend = Backend(models.BPE(vocab=vocab, merges=MERGES))
    backend.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        backend.normalizer = normalizer
    added = [AddedToken(token, normalized=False, special=True, **flags) for token in SPECIAL]
    backend.add_special_tokens(added)
    backend.add_tokens([AddedToken("<x>", normalized=False), AddedToken("ba", normalized=True)])
    return backend


KINDS: dict[str, Callable[[], Backend]] = {
    "plain": backend_of,
    "prefix space": lambda: backend_of(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "digits": lambda: backend_of(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
    ),
    "qwen": lambda: backend_of(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+(?!\S)| ?\S+|\s+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        normalizers.NFC(),
    ),
    "metaspace first": lambda: backend_of(
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "metaspace always": lambda: backend_of(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "prepended": lambda: backend_of(
        pre_tokenizers.Split("▁", "merged_with_next"),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ),
    "stripped": lambda: backend_of(
        None, normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])
    ),
}
BITS = st.sampled_from(
    [
        *SPECIAL,
        "<x>",
        "<|a|",
        "|>",
        "<",
        "a",
        "b",
        "ba",
        "A",
        " ",
        "  ",
        "\n",
        "\n\n",
        "1",
        "23",
        "é",
        "e\u0301",
        "\u0301",
        "▁",
        "🙂",
        "<s",
        ">",
    ]
)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_joined_are_the_whole(kind: str) -> None:
    backend = KINDS[kind]()
    rule = segment_rule(backend)
    assert isinstance(rule, SegmentRule)
    cache = SegmentCache(lambda text: backend.encode(text, add_special_tokens=False).ids, 4000)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(BITS, max_size=16).map("".join))
    def check(text: str) -> None:
        parts = rule.parts(text)
        assert "".join(parts) == text
        expected = backend.encode(text, add_special_tokens=False).ids
        assert cache.tokens(parts, "") == expected
        assert cache.tokens(parts, "") == expected

    check()


@pytest.mark.slow
def test_parts_of_smollm2_joined_are_the_whole(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    bits = st.sampled_from(
        [
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
            "<repo_name>",
            "<|im_",
            "user\n",
            "\n",
            "  ",
            " The",
            "the ",
            "12",
            "'s",
            "é",
            "e\u0301",
            "你好",
            "🙂",
            "def f(x):\n\t",
        ]
    )

    @settings(max_examples=300, deadline=None)
    @given(st.lists(bits | st.text(max_size=8), max_size=20).map("".join))
    def check(text: str) -> None:
        whole = tokenizer.backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_text(text) == whole
        assert tokenizer.encode_text(text) == whole

    check()


def test_an_earlier_turn_is_not_tokenised_again() -> None:
    backend = backend_of()
    rule = segment_rule(backend)
    assert isinstance(rule, SegmentRule)
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return backend.encode(text, add_special_tokens=False).ids

    cache = SegmentCache(encode)
    cache.tokens(rule.parts("<s>ab</s><s>b1"), "")
    assert asked == ["<s>ab", "</s>", "<s>b1"]
    cache.tokens(rule.parts("<s>ab</s><s>b1</s><s>new"), "")
    assert asked[3:] == ["<s>new"]
    cache.tokens(rule.parts("<s>ab</s>"), "another salt")
    assert asked[4:] == ["<s>ab", "</s>"]


def test_what_is_kept_is_bounded_and_the_latest() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    cache = SegmentCache(encode, max_bytes=4000)
    for number in range(100):
        cache.tokens(["kept", f"text {number}"], "")
        assert cache.num_bytes <= 4000
    assert asked.count("kept") == 1
    cache.tokens(["x" * 2000], "")
    cache.tokens(["x" * 2000], "")
    assert asked.count("x" * 2000) == 2
    assert cache.num_bytes <= 4000
    cache.tokens(["kept"], "")
    assert asked.count("kept") == 1
    assert cache.tokens(["text 0"], "") == [6]
    assert asked.count("text 0") == 2


def test_threads_share_what_is_kept() -> None:
    cache = SegmentCache(lambda text: [len(text)], max_bytes=3000)
    wrong: list[str] = []

    def work() -> None:
        for number in range(2000):
            text = "y" * (number % 17)
            if cache.tokens([text], "") != [len(text)]:
                wrong.append(text)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.num_bytes <= 3000


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_tokens_that_reach_beyond_themselves_forbid_it(flag: str) -> None:
    reason = segment_rule(backend_of(**{flag: True}))
    assert isinstance(reason, str)
    assert flag in reason
    decision = segment_decision(reason)
    assert (decision.chosen, decision.reasons) == ("made again", (reason,))


def test_other_reasons_against_it() -> None:
    literal = backend_of()
    literal.encode_special_tokens = True
    assert "not recognised" in str(segment_rule(literal))
    drawn = Backend(models.BPE(vocab={"a": 0}, merges=[], dropout=0.5))
    drawn.add_special_tokens([AddedToken("<s>", normalized=False)])
    assert "at random" in str(segment_rule(drawn))
    assert "no special token" in str(segment_rule(Backend(models.BPE(vocab={"a": 0}, merges=[]))))
