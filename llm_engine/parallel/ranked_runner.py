"""Rank 0's runner: every step and every move of pages goes to the other ranks too."""

# S rows with logits, V vocabulary.

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch

from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.cache.storage import PageStorage
from llm_engine.device import upload
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.adapter_rows import adapter_numbers
from llm_engine.parallel.commands import Commands
from llm_engine.parallel.executor import RankExecutor
from llm_engine.parallel.step_command import MoveKind, PageMove, StepCommand
from llm_engine.parallel.step_division import StepDivision, StepPart
from llm_engine.sequence import Chunk


class RankedRunner:
    """See `llm_engine.runner.StepRunner`."""

    def __init__(
        self,
        executor: RankExecutor,
        pool: SequenceCache,
        commands: Commands,
        division: StepDivision,
        adapters: Sequence[str] = (),
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        """`pool` says where each sequence's pages are: on all ranks, or on those of its part.

        `division` makes commands of a step. `adapters` are their names. `meet` carries out rank
        0's part of what others do while they load.
        """
        self._executor, self._pool, self._commands = executor, pool, commands
        self._division, self._meet = division, meet
        self._adapters = sorted(adapters)
        self._moves: list[PageMove] = []
        self._numbers = count()
        tickets = count()
        self.storages: Sequence[PageStorage] = [
            RankedStorage(None if part else executor.storage, self._moves, part, tickets)
            for part in range(len(pool.parts))
        ]

    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """Compute the chunks on all ranks; see `llm_engine.runner.StepRunner`."""
        found: list[torch.Tensor] = []
        order: list[int] = []
        for part in self._division.parts(chunks, self._pool.part_of):
            logits_SV = self._run([chunks[index] for index in part.chunks], part)
            if logits_SV is not None:
                found.append(logits_SV)
                order += [index for index in part.chunks for _ in range(chunks[index].num_logits)]
        if order == sorted(order):
            return torch.cat(found) if found else None
        # Chunks come in the order of the step again, and the rows of each in theirs.
        restored = sorted(range(len(order)), key=order.__getitem__)
        rows = upload(restored, torch.int64, found[0].device)
        return torch.cat(found).index_select(0, rows)

    def _run(self, chunks: Sequence[Chunk], part: StepPart) -> torch.Tensor | None:
        token_ids: list[int] = []
        rows: list[int] = []
        for chunk in chunks:
            token_ids.extend(chunk.token_ids)
            rows.extend(range(len(token_ids) - chunk.num_logits, len(token_ids)))
        command = StepCommand(
            sequence=next(self._numbers),
            phase=part.phase,
            part_rows=part.part_rows,
            token_ids=tuple(token_ids),
            spans=tuple(self._span(chunk) for chunk in chunks),
            logit_rows=tuple(rows),
            moves=self._take_moves(),
            adapters=adapter_numbers(self._adapters, [chunk.seq.adapter_id for chunk in chunks]),
        )
        self._commands.send(command.encode())
        # This rank moved its own pages when it was asked to.
        return self._executor.execute(command, has_moved=True)

    def rejoin(self) -> None:
        """See `llm_engine.runner.StepRunner`."""
        self._moves.clear()  # of pages that no longer are
        self._meet()
        self._executor.renew()

    def flush(self) -> None:
        """Send the moves that would wait for the next step."""
        if self._moves:
            self.run(())

    def _take_moves(self) -> tuple[PageMove, ...]:
        # One by one: pages may be let go of at any moment, the collector's included.
        taken: list[PageMove] = []
        while self._moves:
            taken.append(self._moves.pop(0))
        return tuple(taken)

    def _span(self, chunk: Chunk) -> AttentionSpan:
        pages = self._pool.table(chunk.seq.seq_id)
        num_used = -(-chunk.end // self._pool.page_size)
        return AttentionSpan(chunk.start, chunk.num_tokens, tuple(pages[:num_used]))


class SavedPages(list[Any]):
    """Rank 0's contents of saved pages; the others keep theirs under the ticket."""

    ticket: int = 0


class RankedStorage:
    """The pages of one part of the cache: rank 0's are moved at once, others' before a step."""

    def __init__(
        self, own: PageStorage | None, moves: list[PageMove], part: int, tickets: Iterator[int]
    ) -> None:
        """`own` is rank 0's, None where it has nothing of the part.

        `moves` is where what the others have to do is noted; `tickets` are the engine's.
        """
        self._own, self._moves, self._part, self._tickets = own, moves, part, tickets

    def copy_out(self, group: int, pages: Sequence[int]) -> SavedPages:
        """Rank 0's contents; the other ranks keep theirs for as long as these are held."""
        saved = SavedPages(self._own.copy_out(group, pages) if self._own else ())
        saved.ticket = next(self._tickets)
        self._note("save", pages, saved.ticket)
        weakref.finalize(saved, self._note, "drop", (), saved.ticket).atexit = False
        return saved

    def copy_in(self, group: int, pages: Sequence[int], contents: Sequence[Any]) -> None:
        """Write what `copy_out` returned for as many pages."""
        assert isinstance(contents, SavedPages), "only saved pages can be loaded"
        if self._own:
            self._own.copy_in(group, pages, contents)
        self._note("load", pages, contents.ticket)

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one page onto another."""
        if self._own:
            self._own.copy(group, source, target)
        self._note("copy", (source, target))

    def give_back(self, group: int, pages: Sequence[int]) -> None:
        """Return the memory of pages to the system on all ranks of the part."""
        if self._own:
            self._own.give_back(group, pages)
        if pages:
            self._note("give_back", pages)

    def _note(self, kind: MoveKind, pages: Sequence[int], ticket: int = 0) -> None:
        self._moves.append(PageMove(kind, tuple(pages), ticket, self._part))
