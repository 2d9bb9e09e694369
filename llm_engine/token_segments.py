"""Prompts tokenised part by part: what stood in an earlier turn is not tokenised again."""

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import Tokenizer as Backend

from kernels.ledger import Decision
from kernels.spec import Tier

MAX_CACHE_BYTES = 32 * 2**20
_ENTRY_BYTES = 300  # of a key, its text and its array, besides characters and tokens
_FLAGS = ("lstrip", "rstrip", "single_word")


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """Where a text may be cut so that the parts' tokens, joined, are those of the whole.

    A part begins with a special token. The library finds tokens of this kind first, on the raw
    text, and normalises and tokenises what lies between them piece by piece; a part is therefore
    read as inside the whole, whatever the normaliser and the pre-tokenizer do. That holds if no
    such token looks at, or swallows, what stands beside it.
    Source: huggingface/tokenizers, tokenizers/src/tokenizer/added_vocabulary.rs.
    """

    pattern: re.Pattern[str]
    specials: frozenset[str]

    def parts(self, text: str) -> list[str]:
        """The text cut before each special token; empty parts are left out."""
        found = self.pattern.finditer(text)
        starts = [match.start() for match in found if match[0] in self.specials]
        edges = [0, *starts, len(text)]
        return [text[a:b] for a, b in pairwise(edges) if a < b]


def segment_rule(backend: Backend) -> SegmentRule | str:
    """The rule for a tokenizer, or why there is none."""
    if backend.encode_special_tokens:
        return "special tokens in a text are not recognised"
    if getattr(backend.model, "dropout", None):
        return "its merges are drawn at random"
    first = [t for t in backend.get_added_tokens_decoder().values() if not t.normalized]
    for token in first:
        flags = [flag for flag in _FLAGS if getattr(token, flag)]
        if flags:
            return f"its token {token.content!r} reaches beyond itself ({', '.join(flags)})"
    specials = frozenset(token.content for token in first if token.special and token.content)
    if not specials:
        return "it has no special token that is found before a text is normalised"
    # Of two tokens that begin together the library takes the longer one.
    longest_first = sorted({t.content for t in first if t.content}, key=len, reverse=True)
    return SegmentRule(re.compile("|".join(map(re.escape, longest_first))), specials)


class SegmentCache:
    """Tokens of the parts used last, within `max_bytes`. Safe to use from several threads."""

    def __init__(
        self, encode: Callable[[str], Sequence[int]], max_bytes: int = MAX_CACHE_BYTES
    ) -> None:
        """Tokenise unknown parts with `encode`."""
        self._encode = encode
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """What is held now, counted a little high."""
        return self._num_bytes

    def tokens(self, parts: Sequence[str], salt: str) -> list[int]:
        """Tokens of all parts; only requests of one salt share what is kept.

        Otherwise the time that a prompt takes would tell what another has sent.
        """
        joined: list[int] = []
        for part in parts:
            key = (salt, part)
            with self._lock:
                found = self._kept.get(key)
                if found is not None:
                    self._kept.move_to_end(key)
            if found is None:
                found = array("i", self._encode(part))
                self._keep(key, found)
            joined.extend(found)
        return joined

    def _keep(self, key: tuple[str, str], tokens: "array[int]") -> None:
        size_bytes = _size_bytes(key, tokens)
        if size_bytes > self._max_bytes // 4:  # one text must not push out all conversations
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = tokens
            self._num_bytes += size_bytes
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _size_bytes(*self._kept.popitem(last=False))


def segment_decision(rule: SegmentRule | str) -> Decision:
    """Whether earlier turns are tokenised again, and why, as a line of the ledger."""
    is_on = isinstance(rule, SegmentRule)
    return Decision(
        kind="chat",
        where="llm engine, prompts",
        what="tokens of earlier turns",
        asked="auto",
        chosen="kept" if is_on else "made again",
        tier=Tier.VENDOR,
        source="default",
        case=f"{MAX_CACHE_BYTES // 2**20} MiB" if is_on else "",
        reasons=(
            ("its special tokens always split a text: the parts' tokens joined are the whole's",)
            if isinstance(rule, SegmentRule)
            else (rule,)
        ),
        evidence="run on CPU",
    )


def _size_bytes(key: tuple[str, str], tokens: "array[int]") -> int:
    salt, part = key
    return _ENTRY_BYTES + 4 * (len(salt) + len(part) + len(tokens))
