"""Prompt text to integer ids: words, stems, and hashed stems, stem pairs and letter triples.

Nothing is looked up in a word list, so no word is out of vocabulary; word forms share a stem
("zoom", "zooms", "zooming") and rare words share letter triples.
"""

import re
import unicodedata
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from video_engine.models.motion_small.config import TextConfig

PAD_ID = 0
NULL_ID = 1
_FIRST_HASH_ID = 2
_WORD = re.compile(r"[^\W_]+")
_KEEP_DOUBLE = "sz"


class WordIds(NamedTuple):
    """Ids of a batch: stems and bigrams (B, L), trigrams (B, L, K); PAD_ID where there is none."""

    stems: NDArray[np.int64]
    bigrams: NDArray[np.int64]
    trigrams: NDArray[np.int64]


def split_words(text: str) -> list[str]:
    """Lower-case words of any script, accents removed, punctuation and underscores dropped."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    return _WORD.findall(plain)


def _undouble(word: str) -> str:
    is_double = len(word) > 3 and word[-1] == word[-2] and word[-1] not in _KEEP_DOUBLE
    if not is_double or (word[-1] == "l" and len(word) <= 4):
        return word
    return word[:-1]


def stem(word: str) -> str:
    """Cheap English stem: strips -s, -ing, -ed, -ly, -ion, doubled consonants and a final e."""
    if word.endswith("s") and not word.endswith("ss") and len(word) > 3:
        word = word[:-1]
    if word.endswith("ie") and len(word) > 3:
        return word[:-2] + "y"
    for suffix in ("ing", "ed"):
        if word.endswith(suffix) and len(word) >= len(suffix) + 3:
            word = _undouble(word[: -len(suffix)])
            break
    else:
        for suffix in ("ly", "ion"):
            if word.endswith(suffix) and len(word) >= len(suffix) + 4:
                word = word[: -len(suffix)]
                break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _hash_id(salt: str, text: str, size: int) -> int:
    return _FIRST_HASH_ID + zlib.crc32(f"{salt}\0{text}".encode()) % (size - _FIRST_HASH_ID)


def trigram_ids(word: str, config: TextConfig) -> list[int]:
    """Hashed letter triples of the word with its two ends marked."""
    marked = f"<{word}>"
    triples = [marked[i : i + 3] for i in range(len(marked) - 2)]
    return [_hash_id("tri", t, config.num_trigrams) for t in triples[: config.max_trigrams]]


def encode_words(prompts: list[str | None], config: TextConfig) -> WordIds:
    """Ids of every prompt; None is the null prompt of classifier-free guidance.

    Shapes: L = config.max_words (longer prompts are cut), K = config.max_trigrams.
    """
    shape = (len(prompts), config.max_words)
    stems = np.full(shape, PAD_ID, np.int64)
    bigrams = np.full(shape, PAD_ID, np.int64)
    trigrams = np.full((*shape, config.max_trigrams), PAD_ID, np.int64)
    for row, prompt in enumerate(prompts):
        if prompt is None:
            stems[row, 0] = NULL_ID
            continue
        previous = "^"
        for col, word in enumerate(split_words(prompt)[: config.max_words]):
            root = stem(word)
            stems[row, col] = _hash_id("stem", root, config.num_stems)
            bigrams[row, col] = _hash_id("pair", f"{previous} {root}", config.num_bigrams)
            ids = trigram_ids(word, config)
            trigrams[row, col, : len(ids)] = ids
            previous = root
    return WordIds(stems, bigrams, trigrams)
