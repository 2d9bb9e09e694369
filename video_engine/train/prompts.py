"""Random prompts for a wanted motion: phrase, speed word, fillers, nouns nobody has seen."""

import string

import numpy as np

from video_engine.train.vocabulary import FILLERS, NOUNS, PHRASES, SPEED_WORDS

_RANDOM_NOUN_RATIO = 0.3
_RANDOM_FILLER_RATIO = 0.15
_FILLED_RATIO = 0.4
_SPEED_FIRST_RATIO = 0.6
_JOINERS = (" and ", " and ", " and ", ", ", " while ", ", then ", " with ", " as ", " and then ")


def _choice(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]


def pseudo_word(rng: np.random.Generator) -> str:
    """Three to nine random letters: a word that no text holds."""
    letters = rng.integers(0, 26, int(rng.integers(3, 10)))
    return "".join(string.ascii_lowercase[int(i)] for i in letters)


def noun(rng: np.random.Generator) -> str:
    """A noun of the list, or in 30 % a pseudo-word."""
    return pseudo_word(rng) if rng.random() < _RANDOM_NOUN_RATIO else _choice(rng, NOUNS)


def _with_nouns(rng: np.random.Generator, text: str) -> str:
    while "{n}" in text:
        text = text.replace("{n}", noun(rng), 1)
    return text


def phrase(rng: np.random.Generator, kind: str, speed: str) -> str:
    """One phrase of the kind with its nouns filled in and the speed word before or after."""
    text = _choice(rng, PHRASES[kind])
    text = _with_nouns(rng, text)
    word = _choice(rng, SPEED_WORDS[speed])
    if not word:
        return text
    if rng.random() < _SPEED_FIRST_RATIO:
        return f"{word} {text}"
    if rng.random() < 0.25 and " " in text:
        first, rest = text.rsplit(" ", 1)
        return f"{first} {word} {rest}"
    return f"{text} {word}"


def _filler(rng: np.random.Generator) -> str:
    if rng.random() < _RANDOM_FILLER_RATIO:
        return pseudo_word(rng)
    return noun(rng) if rng.random() < 0.2 else _with_nouns(rng, _choice(rng, FILLERS))


def _fill(rng: np.random.Generator, text: str, count: int) -> str:
    for _ in range(count):
        joint = " " if rng.random() < 0.6 else ", "
        added = _filler(rng)
        text = f"{added}{joint}{text}" if rng.random() < 0.5 else f"{text}{joint}{added}"
    return text


def make_prompt(rng: np.random.Generator, kinds: tuple[str, ...], speed: str) -> str:
    """A prompt that asks for the kinds, all at one speed; the speed word stands once."""
    parts = [phrase(rng, kinds[0], speed)]
    parts += [phrase(rng, kind, "plain") for kind in kinds[1:]]
    if len(parts) > 1 and rng.random() < 0.5 and speed == "plain":
        parts.reverse()
    text = _choice(rng, _JOINERS).join(parts)
    if kinds == ("ambient",):
        return _fill(rng, text, int(rng.integers(0, 6))).strip(" ,")
    if rng.random() < _FILLED_RATIO:
        text = _fill(rng, text, int(rng.integers(1, 5)))
    return text
