"""What rank 0 tells the other ranks of a step: tokens, spans, and rows with logits, as bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from llm_engine.errors import LLMError
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.layout import PHASES, Phase

MoveKind = Literal["save", "load", "drop", "copy", "give_back"]

_KINDS: tuple[MoveKind, ...] = ("save", "load", "drop", "copy", "give_back")
_MAGIC = b"LWS2"
# Sequence number, phase, and the numbers of tokens, spans, rows, moves, parts and adapters.
_HEADER = struct.Struct("<4sQB6I")
_NUMBER = "i"  # of four bytes on every platform that torch has


class BrokenCommand(LLMError):
    """Bytes that are no step command: sender and receiver are of different versions."""


@dataclass(frozen=True, slots=True)
class PageMove:
    """Something done to pages of the cache before the step, on every rank to its own share.

    Where ranks cache different sequences, on those of one `part` alone.

    save: copy `pages` out under `ticket`; load: copy what lies under `ticket` into as many
    `pages`; drop: forget `ticket`; copy: the first of `pages` onto the second; give_back: the
    memory of `pages` may return to the system. `ticket` is 0 where it means nothing.
    """

    kind: MoveKind
    pages: tuple[int, ...] = ()
    ticket: int = 0
    part: int = 0

    @property
    def overwritten(self) -> tuple[int, ...]:
        """The pages whose contents change."""
        if self.kind in ("load", "give_back"):
            return self.pages
        return self.pages[1:] if self.kind == "copy" else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommand:
    """One step: all tokens, in the order of their spans; spans of one token come first.

    `sequence` counts the steps of a founding of the group, from 0. `logit_rows` are rising rows
    of the step. `moves` happen before it. A command without tokens carries moves alone.
    `part_rows` are the rows of each dp rank, one part after the other; empty without that axis.
    Within a part, spans of one token come first. `adapters` has one number for each span, 0 for
    none, or is empty where no span uses one.
    """

    sequence: int
    phase: Phase
    token_ids: tuple[int, ...]
    spans: tuple[AttentionSpan, ...]
    logit_rows: tuple[int, ...]
    moves: tuple[PageMove, ...] = ()
    part_rows: tuple[int, ...] = ()
    adapters: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """A header, then numbers of four bytes: compact, and decoded without a parser."""
        numbers = array(_NUMBER, self.token_ids)
        for span in self.spans:
            numbers.extend((span.start, span.num_tokens, len(span.pages)))
            numbers.extend(span.pages)
        numbers.extend(self.logit_rows)
        for move in self.moves:
            numbers.extend((_KINDS.index(move.kind), move.ticket, move.part, len(move.pages)))
            numbers.extend(move.pages)
        numbers.extend(self.part_rows)
        numbers.extend(self.adapters)
        lists = (self.token_ids, self.spans, self.logit_rows, self.moves, self.part_rows)
        counts = map(len, (*lists, self.adapters))
        header = _HEADER.pack(_MAGIC, self.sequence, PHASES.index(self.phase), *counts)
        return header + numbers.tobytes()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """The command that was encoded.

        Raises: BrokenCommand for anything else.
        """
        try:
            magic, sequence, phase, *counts = _HEADER.unpack_from(data)
            if magic != _MAGIC:
                raise BrokenCommand(f"a step command begins with {_MAGIC!r}, not {magic!r}")
            numbers = array(_NUMBER)
            numbers.frombytes(data[_HEADER.size :])
            reader = _Reader(numbers)
            command = cls(
                sequence=sequence,
                phase=PHASES[phase],
                token_ids=reader.take(counts[0]),
                spans=tuple(reader.span() for _ in range(counts[1])),
                logit_rows=reader.take(counts[2]),
                moves=tuple(reader.move() for _ in range(counts[3])),
                part_rows=reader.take(counts[4]),
                adapters=reader.take(counts[5]),
            )
        except (struct.error, ValueError, IndexError) as error:
            raise BrokenCommand(f"{len(data)} bytes are no step command: {error}") from error
        if reader.num_left:
            raise BrokenCommand(f"{reader.num_left} numbers are left over after a step command")
        return command


class _Reader:
    """Takes numbers in order."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._place = 0

    @property
    def num_left(self) -> int:
        return len(self._numbers) - self._place

    def take(self, count: int) -> tuple[int, ...]:
        if not 0 <= count <= self.num_left:
            raise ValueError(f"{count} numbers are due, {self.num_left} are left")
        self._place += count
        return tuple(self._numbers[self._place - count : self._place])

    def span(self) -> AttentionSpan:
        start, num_tokens, num_pages = self.take(3)
        return AttentionSpan(start, num_tokens, self.take(num_pages))

    def move(self) -> PageMove:
        kind, ticket, part, num_pages = self.take(4)
        return PageMove(_KINDS[kind], self.take(num_pages), ticket, part)
