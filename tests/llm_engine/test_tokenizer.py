"""Texts to tokens and back, and the bytes of a token."""

from threading import Thread
from typing import Any

import pytest

from llm_engine.loader import LoadedModel


def test_token_bytes_cover_every_byte(tiny_loaded: LoadedModel) -> None:
    tokenizer = tiny_loaded.tokenizer
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert tokenizer.token_bytes(256) == b"<eos>"
    assert tokenizer.token_bytes(257) == b""
    assert tiny_loaded.eos_token_ids == {256}
    assert tokenizer.vocab_size == 257


def test_special_tokens_are_recognised_and_left_out(tiny_loaded: LoadedModel) -> None:
    tokenizer = tiny_loaded.tokenizer
    assert tokenizer.encode_text("a<eos>b") == [97, 256, 98]
    assert tokenizer.decode([*b"ab", 256]) == "ab"
    assert tokenizer.decode([*b"ab", 256], keep_special=True) == "ab<eos>"
    assert tokenizer.special_tokens == {"eos_token": "<eos>"}


def test_a_long_prompt_holds_up_no_answer(tiny_loaded: LoadedModel) -> None:
    tokenizer = tiny_loaded.tokenizer
    found: list[int] = []
    reading = Thread(target=lambda: found.extend(tokenizer.encode_text("word " * 400_000)))
    reading.start()
    num_decoded = 0
    while reading.is_alive():
        assert tokenizer.decode([*b"ab"]) == "ab"
        num_decoded += 1
    assert bytes(found) == b"word " * 400_000
    # With a lock around both, or the GIL held, one of them would wait for the other's end.
    assert num_decoded > 50


@pytest.mark.slow
def test_smollm2_texts_equal_transformers(smollm2: LoadedModel) -> None:
    """With the split that the model was trained with, which transformers leaves out of a GGUF."""
    from transformers import PreTrainedTokenizerFast

    path = smollm2.source.path
    theirs: Any = PreTrainedTokenizerFast.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True
    )
    ours = smollm2.tokenizer
    assert ours.chat_template == theirs.chat_template
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.eos_token_id == theirs.eos_token_id == 2
    texts = [
        *(
            f"{a}{b}{c}"
            for a in ("", " ", "\n", "é")
            for b in ("x", "Tea", "🙂")
            for c in (".", "'s")
        ),
        "<|im_start|>user\n2 + 2 = 🙂<|im_end|>\n",
        "def f(x):\n\treturn  [x ** 2 for _ in range(10_000)]\n\n\n",
        "你好 世界 — naïve café\u00a0\u200b ﬁ",
        "".join(map(chr, range(1, 2000))),
    ]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(
            theirs.encode(text), skip_special_tokens=True
        )
    theirs.backend_tokenizer.pre_tokenizer = ours.backend.pre_tokenizer
    assert ours.encode("    16 and\n  7") == theirs.encode("    16 and\n  7")
