"""Text comes out whole: no half characters, and the pieces join to the full decode."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.answers.detokenizer import REPLACEMENT, Detokenizer
from llm_engine.loader import LoadedModel


def _decode_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode("utf-8", errors="replace")


def _pieces(decode: Callable[[Sequence[int]], str], token_ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_valid_text_never_shows_a_replacement(text: str) -> None:
    pieces = _pieces(_decode_bytes, text.encode())
    assert "".join(pieces) == text
    if REPLACEMENT not in text:
        assert all(REPLACEMENT not in piece for piece in pieces)


@settings(deadline=None)
@given(st.lists(st.integers(0, 255), max_size=150))
def test_any_bytes_join_to_the_full_decode(token_ids: list[int]) -> None:
    assert "".join(_pieces(_decode_bytes, token_ids)) == _decode_bytes(token_ids)


@pytest.mark.parametrize("garbage", [[0x80], [0xF0], [0xF0, 0x9F], [0xE2, 0x82], [0xFF, 0x98]])
def test_endless_garbage_keeps_the_window_short(garbage: list[int]) -> None:
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return _decode_bytes(token_ids)

    token_ids = garbage * 200
    assert "".join(_pieces(decode, token_ids)) == _decode_bytes(token_ids)
    assert longest <= 80


def test_a_split_character_comes_as_one_piece() -> None:
    assert _pieces(_decode_bytes, "🙂ď".encode()) == ["", "", "", "🙂", "", "ď", ""]


def test_spaces_that_decoders_strip_at_the_start_are_kept() -> None:
    words = ["▁Hello", "▁", "▁world", "!"]

    def decode(token_ids: Sequence[int]) -> str:
        return "".join(words[i] for i in token_ids).replace("▁", " ").removeprefix(" ")

    assert "".join(_pieces(decode, [0, 2, 1, 1, 3])) == decode([0, 2, 1, 1, 3])


def test_byte_fallback_runs_complete() -> None:
    """A run of byte tokens decodes as a whole or, broken, as one U+FFFD per byte."""

    def decode(token_ids: Sequence[int]) -> str:
        raw = bytes(token_ids)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(raw)

    text = "🙂🙃€"
    pieces = _pieces(decode, text.encode())
    assert "".join(pieces) == text
    assert pieces[:4] == ["", "", "", "🙂"]


@pytest.mark.slow
def test_smollm2_tokens_join_to_the_full_decode(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    for text in ("naïve café 🙂 ď", "日本語のテキスト、絵文字👩‍👩‍👧", "  two  spaces\n\ttabs"):
        token_ids = tokenizer.encode(text)
        pieces = _pieces(tokenizer.decode, token_ids)
        assert "".join(pieces) == tokenizer.decode(token_ids) == text
        assert all(REPLACEMENT not in piece for piece in pieces)
        assert b"".join(map(tokenizer.token_bytes, token_ids)) == text.encode()
