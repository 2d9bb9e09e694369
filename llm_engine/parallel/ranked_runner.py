"""Rank 0's runner: every step and every move of pages goes to the other ranks too."""

# S rows with logits, V vocabulary.

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.storage import PageStorage
from llm_engine.layers.attention import AttentionSpan
from llm_engine.parallel.commands import Commands
from llm_engine.parallel.executor import RankExecutor
from llm_engine.parallel.step_command import PageMove, Phase, StepCommand
from llm_engine.sequence import Chunk


class RankedRunner:
    """See `llm_engine.runner.StepRunner`."""

    def __init__(
        self,
        executor: RankExecutor,
        pool: KVCache,
        commands: Commands,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        """`pool` says where each sequence's pages are, on all ranks alike.

        `meet` carries out rank 0's part of what others do while they load.
        """
        self._executor, self._pool, self._commands = executor, pool, commands
        self._meet = meet
        self._moves: list[PageMove] = []
        self._numbers = count()
        self.storage: PageStorage = RankedStorage(executor.storage, self._moves)

    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """Compute the chunks on all ranks; see `llm_engine.runner.StepRunner`."""
        token_ids: list[int] = []
        rows: list[int] = []
        for chunk in chunks:
            token_ids.extend(chunk.token_ids)
            rows.extend(range(len(token_ids) - chunk.num_logits, len(token_ids)))
        command = StepCommand(
            sequence=next(self._numbers),
            phase=phase_of(chunks),
            token_ids=tuple(token_ids),
            spans=tuple(self._span(chunk) for chunk in chunks),
            logit_rows=tuple(rows),
            moves=self._take_moves(),
        )
        self._commands.send(command.encode())
        # This rank moved its own pages when it was asked to.
        return self._executor.execute(replace(command, moves=()))

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
    """The pages of all ranks: rank 0's are moved at once, the others' before the next step."""

    def __init__(self, own: PageStorage, moves: list[PageMove]) -> None:
        """`moves` is where what the others have to do is noted."""
        self._own, self._moves = own, moves
        self._tickets = count()

    def copy_out(self, group: int, pages: Sequence[int]) -> SavedPages:
        """Rank 0's contents; the other ranks keep theirs for as long as these are held."""
        saved = SavedPages(self._own.copy_out(group, pages))
        saved.ticket = next(self._tickets)
        self._moves.append(PageMove("save", tuple(pages), saved.ticket))
        drop = PageMove("drop", ticket=saved.ticket)
        weakref.finalize(saved, self._moves.append, drop).atexit = False
        return saved

    def copy_in(self, group: int, pages: Sequence[int], contents: Sequence[Any]) -> None:
        """Write what `copy_out` returned for as many pages."""
        assert isinstance(contents, SavedPages), "only saved pages can be loaded"
        self._own.copy_in(group, pages, contents)
        self._moves.append(PageMove("load", tuple(pages), contents.ticket))

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one page onto another."""
        self._own.copy(group, source, target)
        self._moves.append(PageMove("copy", (source, target)))

    def give_back(self, group: int, pages: Sequence[int]) -> None:
        """Return the memory of pages to the system on all ranks."""
        self._own.give_back(group, pages)
        if pages:
            self._moves.append(PageMove("give_back", tuple(pages)))


def phase_of(chunks: Sequence[Chunk]) -> Phase:
    """Prefill as soon as a chunk computes more known tokens than the one that is due."""
    is_prefill = any(chunk.num_tokens - chunk.num_drafts > 1 for chunk in chunks)
    return "prefill" if is_prefill else "decode"
