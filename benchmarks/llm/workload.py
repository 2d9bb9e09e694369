"""Prompts and arrival traces: the same for every engine, another in every round.

A prompt is a run of this project's own prose in the words that are one token each, from a random
place: natural order, no two prompts with a common beginning. Determined by (row, round) alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.report import ROOT

# (prompt, new tokens, seconds after the start)
Request = tuple[list[int], int, float]

PROSE = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
_WORD = re.compile(r"[A-Za-z]+|[.,;:]")
_SPACE = "Ġ"  # the sign of a leading space in a byte-level vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Lengths of a mixed load, each drawn evenly from its choices. Unit: tokens."""

    prompt_tokens: Sequence[int] = (32, 64, 96, 128, 192, 256, 384, 512)
    new_tokens: Sequence[int] = (16, 32, 64, 96, 128)

    @property
    def mean_prompt(self) -> float:
        """Mean length of a prompt."""
        return sum(self.prompt_tokens) / len(self.prompt_tokens)

    @property
    def mean_new(self) -> float:
        """Mean length of an answer."""
        return sum(self.new_tokens) / len(self.new_tokens)

    def capacity(self, prefill_tok_s: float, decode_tok_s: float) -> float:
        """Requests a second of an engine with these rates when it is never idle."""
        return 1.0 / (self.mean_prompt / prefill_tok_s + self.mean_new / decode_tok_s)


@dataclass(frozen=True, slots=True)
class Prose:
    """Texts as token ids, of which prompts are cut."""

    token_ids: Sequence[int]

    def prompt(self, num_tokens: int, key: str) -> list[int]:
        """A prompt that `key` determines: two random words, then prose from a random place."""
        draw = random.Random(key)
        words = sorted(set(self.token_ids))
        start = draw.randrange(len(self.token_ids))
        order = [*draw.choices(words, k=2), *self.token_ids[start:]]
        while len(order) < num_tokens:
            start = draw.randrange(len(self.token_ids))
            order += self.token_ids[start : start + 200]
        return order[:num_tokens]

    def prompts(self, count: int, num_tokens: int, key: str) -> list[list[int]]:
        """Several prompts of one length."""
        return [self.prompt(num_tokens, f"{key}/{index}") for index in range(count)]


def poisson_trace(prose: Prose, mix: Mix, *, count: int, rate_hz: float, key: str) -> list[Request]:
    """Requests with exponential gaps of mean 1 / `rate_hz`; the first arrives at once."""
    draw = random.Random(key)
    at, trace = 0.0, list[Request]()
    for index in range(count):
        prompt = prose.prompt(draw.choice(mix.prompt_tokens), f"{key}/{index}")
        trace.append((prompt, draw.choice(mix.new_tokens), at))
        at += draw.expovariate(rate_hz)
    return trace


@cache
def read_prose(root: Path = ROOT) -> tuple[str, ...]:
    """Words and stops of the project's documents, in order."""
    files = [
        page
        for name in PROSE
        for page in (sorted((root / name).glob("**/*.md")) or [root / name])
        if page.is_file()
    ]
    return tuple(word for file in files for word in _WORD.findall(file.read_text("utf-8")))


def prose_of(vocabulary: Sequence[str]) -> Prose:
    """The documents in the tokens of a byte-level vocabulary; words of several are left out."""
    ids = {token: token_id for token_id, token in enumerate(vocabulary)}
    names = (word if word in ".,;:" else _SPACE + word for word in read_prose())
    return Prose(tuple(ids[name] for name in names if name in ids))
