"""An engine's step as the commands that carry it out: one, or one for each phase in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from llm_engine.parallel.layout import Phase, PhaseLayouts
from llm_engine.parallel.staged_prompts import num_slots
from llm_engine.sequence import Chunk


@dataclass(frozen=True, slots=True)
class StepPart:
    """Chunks of one command, as their numbers in the step.

    `part_rows` are the rows of each part of the cache, one part after the other.
    """

    phase: Phase
    chunks: tuple[int, ...]
    part_rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDivision:
    """How steps are divided.

    Where both phases read one cache, a step with a prompt in it is one command of that phase. Where
    prompts are computed in `num_slots` pages of their own, answers are a command of theirs, before
    those of the prompts, of which none has more pages than slots. Where sequences lie in several
    parts of a cache, the chunks of one part come after those of the other.
    """

    page_size: int
    num_slots: int | None = None
    num_parts: int = 1

    @classmethod
    def of(cls, layouts: PhaseLayouts, context: int, page_size: int) -> Self:
        """The division that layouts need. Units: tokens of the longest sequence and of a page."""
        slots = num_slots(context, page_size) if layouts.is_restaged else None
        return cls(page_size, slots, layouts.decode.dp)

    def parts(self, chunks: Sequence[Chunk], part_of: Callable[[int], int]) -> list[StepPart]:
        """Every chunk once, in the order of the step within each part.

        `part_of` says where a sequence is cached, by its number.
        """
        if self.num_parts > 1:
            return [self._by_part(chunks, [part_of(chunk.seq.seq_id) for chunk in chunks])]
        everything = tuple(range(len(chunks)))
        if self.num_slots is None or not chunks:
            return [StepPart(phase_of(chunks), everything)]
        answers = tuple(i for i in everything if phase_of([chunks[i]]) == "decode")
        parts = [StepPart("decode", answers)] if answers else []
        run: list[int] = []
        num_pages = 0
        for index in everything:
            if index in answers:
                continue
            pages = -(-chunks[index].end // self.page_size)
            if run and num_pages + pages > self.num_slots:
                parts.append(StepPart("prefill", tuple(run)))
                run, num_pages = [], 0
            run.append(index)
            num_pages += pages
        return [*parts, StepPart("prefill", tuple(run))] if run else parts

    def _by_part(self, chunks: Sequence[Chunk], owners: Sequence[int]) -> StepPart:
        rows = [0] * self.num_parts
        for chunk, owner in zip(chunks, owners, strict=True):
            rows[owner] += chunk.num_tokens
        order = sorted(range(len(chunks)), key=owners.__getitem__)
        return StepPart(phase_of(chunks), tuple(order), tuple(rows))


def phase_of(chunks: Sequence[Chunk]) -> Phase:
    """Prefill as soon as a chunk computes more known tokens than the one that is due."""
    is_prefill = any(chunk.num_tokens - chunk.num_drafts > 1 for chunk in chunks)
    return "prefill" if is_prefill else "decode"
