import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from video_engine.models.motion_small.config import TextConfig
from video_engine.models.motion_small.words import PAD_ID, encode_words, split_words, stem

CONFIG = TextConfig()


@pytest.mark.parametrize(
    "forms",
    [
        ("zoom", "zooms", "zooming", "zoomed"),
        ("pan", "pans", "panning", "panned"),
        ("rotate", "rotates", "rotating", "rotated", "rotation"),
        ("move", "moves", "moving", "moved"),
        ("sway", "sways", "swaying", "swayed"),
        ("roll", "rolls", "rolling", "rolled"),
        ("slow", "slowly"),
        ("fly", "flies", "flying"),
    ],
)
def test_word_forms_share_a_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


def test_opposites_keep_apart() -> None:
    words = ["in", "out", "left", "right", "up", "down", "clockwise", "counterclockwise", "slow"]
    assert len({stem(word) for word in words}) == len(words)


def test_split_ignores_case_accents_and_punctuation() -> None:
    assert split_words("Zoom-IN, on_the Café!") == ["zoom", "in", "on", "the", "cafe"]


@given(st.text(max_size=200))
def test_any_text_has_ids_in_range(text: str) -> None:
    ids = encode_words([text], CONFIG)
    for part, size in zip(
        ids, (CONFIG.num_stems, CONFIG.num_bigrams, CONFIG.num_trigrams), strict=True
    ):
        assert part.min() >= 0
        assert part.max() < size
    assert (ids.stems[0] != PAD_ID).sum() == min(len(split_words(text)), CONFIG.max_words)


@given(st.text(max_size=60))
def test_case_never_matters(text: str) -> None:
    lower, upper = encode_words([text.lower(), text.lower().capitalize()], CONFIG).stems
    if split_words(text.lower()) == split_words(text.lower().capitalize()):
        assert np.array_equal(lower, upper)


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_stem_of_a_word_is_never_empty(text: str) -> None:
    for word in split_words(text):
        assert stem(word)


def test_null_prompt_differs_from_empty_and_from_any_text() -> None:
    null, empty, word = encode_words([None, "", "zoom"], CONFIG).stems
    assert not np.array_equal(null, empty)
    assert not np.array_equal(null, word)
