"""Tokenizers built from a model's files equal those that transformers builds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet, read_gguf
from llm_engine.weights.tokenizer_parts import read_folder

CORPUS = [
    "the tea is in the pot, isn't it? It's 1234 o'clock; we'll see 56.78!",
    "  indented\n\n\tlines   of  code(x) == 10_000  ",
    "naïve café — “quotes” 你好 世界 🙂🙃 \u200b e\u0301",
    "THE END.\r\nCamelCase and snake_case, I'D say <b>bold</b>",
]
TEXTS = [*CORPUS, "", " ", "\n", "x" * 50, "<|end|>the<|end|>", " <think> tea</think>", "  12  345"]


def _trained(words: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level vocabulary learned from the corpus with a way to split words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = words
    alphabet = sorted(byte_level_alphabet())
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    state = json.loads(backend.to_str())["model"]
    return state["vocab"], [tuple(merge) for merge in state["merges"]]


def _write(path: Path, tokens: list[str], kinds: list[int], **fields: Any) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(fields.pop("model", "gpt2"))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if "merges" in fields:
        writer.add_token_merges([" ".join(pair) for pair in fields.pop("merges")])
    if "scores" in fields:
        writer.add_token_scores(fields.pop("scores"))
    for name, value in fields.items():
        {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)](
            f"tokenizer.{name.replace('__', '.')}", value
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _byte_level(words: Any, path: Path, split: str) -> Tokenizer:
    vocab, merges = _trained(words)
    tokens = [*sorted(vocab, key=vocab.__getitem__), "<|end|>", "<think>"]
    kinds = [1] * len(vocab) + [3, 4]
    end = len(vocab)
    _write(
        path, tokens, kinds, merges=merges, ggml__pre=split, ggml__eos_token_id=end,
        ggml__bos_token_id=end, ggml__add_bos_token=True, chat_template="{{ messages }}",
    )  # fmt: skip
    return read_gguf(path).backend


def _hf(path: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True
    )


PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize("split", ["gpt-2", "default", "tekken", "llama-bpe"])
def test_byte_level_equals_transformers(tmp_path: Path, split: str) -> None:
    backend = _byte_level(PLAIN, tmp_path / "t.gguf", split)
    theirs = _hf(tmp_path / "t.gguf")
    for text in TEXTS:
        ids = backend.encode(text).ids
        if split not in ("tekken", "llama-bpe"):
            assert ids == theirs.encode(text)
        words = theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert backend.pre_tokenizer.pre_tokenize_str(text) == words
        assert backend.decode(ids) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


def test_qwen_equals_its_own_tokenizer(tmp_path: Path) -> None:
    """The one of the model's folder, which normalises; the GGUF path of transformers does not."""
    backend = _byte_level(PLAIN, tmp_path / "t.gguf", "qwen2")
    vocab, merges = _trained(PLAIN)
    theirs = Qwen2Tokenizer(
        vocab=vocab, merges=merges, eos_token="<|end|>", unk_token="<|end|>", pad_token="<|end|>"
    )
    theirs.add_tokens([AddedToken("<think>", normalized=False)])
    for text in TEXTS:
        assert backend.encode(text, add_special_tokens=False).ids == theirs.encode(text)


def test_digits_stand_alone_where_the_model_was_trained_so(tmp_path: Path) -> None:
    backend = _byte_level(PLAIN, tmp_path / "t.gguf", "smollm")
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("ab  12 c")]
    assert words == ["ab", "ĠĠ", "1", "2", "Ġc"]


def test_sentencepiece_equals_transformers(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted(set("".join(CORPUS[:2])) - set(" \n\t"))
    words = ["th", "the", "▁the", "▁t", "ea", "▁tea", "in", "▁in", "is", "▁is", "▁▁", "12", "34"]
    tokens = [*pieces, *letters, *words]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (1 + len(letters) + len(words))]
    scores = [0.0] * len(pieces) + [-50.0 - i for i in range(len(letters))]
    scores += [-1.0 - i for i in range(len(words))]
    _write(
        tmp_path / "t.gguf", tokens, kinds, model="llama", scores=scores, ggml__bos_token_id=1,
        ggml__eos_token_id=2, ggml__unknown_token_id=0,
    )  # fmt: skip
    parts = read_gguf(tmp_path / "t.gguf")
    theirs = _hf(tmp_path / "t.gguf")
    assert isinstance(theirs, PreTrainedTokenizerFast | LlamaTokenizer)
    assert parts.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for text in [*TEXTS, "the tea</s> in", "  the  tea"]:
        ids = parts.backend.encode(text).ids
        assert ids == theirs.encode(text)
        assert ids[0] == 1
        assert parts.backend.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"ggml__pre": "hieroglyphs", "merges": [("a", "b")]},
            "splits text as 'hieroglyphs'.*qwen2",
        ),
        ({"model": "bert"}, "kind 'bert'; supported: gpt2 with merges, llama"),
        ({"ggml__pre": "gpt-2"}, "kind 'gpt2'"),
    ],
)
def test_vocabularies_it_cannot_build_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    _write(tmp_path / "t.gguf", ["a", "b", "ab"], [1, 1, 1], **fields)
    with pytest.raises(UnsupportedModel, match=message):
        read_gguf(tmp_path / "t.gguf")


def test_a_folder_equals_transformers(
    save_byte_tokenizer: Callable[[Path], None], tmp_path: Path
) -> None:
    save_byte_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    parts = read_folder(tmp_path)
    assert parts.chat_template == theirs.chat_template
    assert parts.special_tokens == {"eos_token": "<eos>"}
    for text in TEXTS:
        assert parts.backend.encode(text).ids == theirs.encode(text)


@pytest.mark.parametrize("adds", [{"add_bos_token": True}, {"add_eos_token": True}, {}], ids=str)
def test_settings_beside_the_tokenizer_are_read_as_transformers_does(
    tmp_path: Path, adds: dict[str, bool]
) -> None:
    vocab, merges = _trained(PLAIN)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer, backend.decoder = PLAIN, decoders.ByteLevel()
    backend.normalizer = normalizers.NFC()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|s|>", eos_token="<|end|>")
    fast.save_pretrained(str(tmp_path))
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | adds
    added = {"content": "<tool>", "special": False, "normalized": False}
    settings["added_tokens_decoder"] = {str(len(vocab) + 2): added}
    path.write_text(json.dumps(settings))
    theirs = PreTrainedTokenizerFast.from_pretrained(str(tmp_path), local_files_only=True)
    backend = read_folder(tmp_path).backend
    for text in [*TEXTS, "a<tool>b", "<|s|>"]:
        assert backend.encode(text).ids == theirs.encode(text)


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json"):
        read_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="cannot read the tokenizer"):
        read_folder(tmp_path)
