"""What runs in the next step. Decisions only: no tensors, no clock, no randomness.

A step first gives every decoding sequence its one token, then spends `prefill_chunk_tokens` on
prompts: those already running, then those waiting, in order of rank. When a running sequence
needs a page and none is free, the running sequence of lowest rank loses its pages and waits to
be computed again.

Rank: priority (smaller first), then arrival. A waiting sequence's priority improves by one for
every `AGING_STEPS` steps it has waited, so none starves.
"""

from dataclasses import dataclass

from llm_engine.kv_cache import PagePool
from llm_engine.sequence import Sequence

AGING_STEPS = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of a sequence; `is_last` when a token is due after it."""

    seq: Sequence
    start: int
    num_tokens: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: single-token chunks first, then longer ones; and who lost its pages for it."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[Sequence, ...]


class Scheduler:
    """Running and waiting sequences over one page pool.

    Invariants: a sequence is running, waiting or unknown; only running ones own pages; at most
    `max_num_seqs` run. The pool must hold any single sequence at its full length, so the running
    sequence of highest rank always advances.
    """

    def __init__(self, pool: PagePool, *, max_num_seqs: int, prefill_chunk_tokens: int) -> None:
        """Start empty. Units: `prefill_chunk_tokens` prompt tokens in one step."""
        self.pool = pool
        self.num_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._step = 0
        self._num_arrivals = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._running)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; the pool must be able to hold it at its full length."""
        assert seq.max_total_tokens <= self.pool.num_pages * self.pool.page_size
        seq.arrival = self._num_arrivals
        self._num_arrivals += 1
        self._enqueue(seq)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence, finished or aborted; its slot and pages are free at once."""
        if seq in self._running:
            self._running.remove(seq)
        elif seq in self._waiting:
            self._waiting.remove(seq)
        self.pool.release(seq.seq_id)

    def schedule(self) -> StepPlan:
        """Choose the next step's chunks and allocate their pages.

        The caller computes them and then reports through `commit`.
        """
        self._step += 1
        self._running.sort(key=self._rank)
        preempted = self._make_room_for_decodes()
        decodes = [self._chunk(seq, 1) for seq in self._running if seq.num_uncomputed == 1]
        prefills = self._schedule_prefills(can_admit=not preempted)
        chunks = sorted((*decodes, *prefills), key=lambda chunk: chunk.num_tokens > 1)
        return StepPlan(chunks=tuple(chunks), preempted=tuple(preempted))

    def commit(self, chunk: Chunk) -> None:
        """Record that a chunk's keys and values are in the cache."""
        assert chunk.seq.num_computed == chunk.start
        chunk.seq.num_computed += chunk.num_tokens

    def _rank(self, seq: Sequence) -> tuple[int, int]:
        return (seq.priority, seq.arrival)

    def _waiting_rank(self, seq: Sequence) -> tuple[int, int]:
        aged = (self._step - seq.queued_at_step) // AGING_STEPS
        return (seq.priority - aged, seq.arrival)

    def _enqueue(self, seq: Sequence) -> None:
        seq.queued_at_step = self._step
        self._waiting.append(seq)

    def _make_room_for_decodes(self) -> list[Sequence]:
        """Give each running sequence pages for its known tokens, best rank first."""
        preempted: list[Sequence] = []
        position = 0
        while position < len(self._running):
            seq = self._running[position]
            while not self.pool.can_grow(seq.seq_id, len(seq.token_ids)):
                victim = self._running[-1]
                self._preempt(victim)
                preempted.append(victim)
                if victim is seq:
                    break
            else:
                self.pool.grow(seq.seq_id, len(seq.token_ids))
                position += 1
        return preempted

    def _preempt(self, seq: Sequence) -> None:
        self.num_preemptions += 1
        self._running.remove(seq)
        self.pool.release(seq.seq_id)
        seq.num_computed = 0
        self._enqueue(seq)

    def _schedule_prefills(self, *, can_admit: bool) -> list[Chunk]:
        budget = self._prefill_chunk_tokens
        chunks: list[Chunk] = []
        for seq in [seq for seq in self._running if seq.num_uncomputed > 1]:
            if budget == 0:
                return chunks
            chunks.append(self._chunk(seq, budget))
            budget -= chunks[-1].num_tokens
        while can_admit and budget > 0 and (seq := self._admit()) is not None:
            chunks.append(self._chunk(seq, budget))
            budget -= chunks[-1].num_tokens
        return chunks

    def _admit(self) -> Sequence | None:
        """Start the first in line, if a slot and all pages for its known tokens are free."""
        if not self._waiting or len(self._running) >= self._max_num_seqs:
            return None
        seq = min(self._waiting, key=self._waiting_rank)
        if not self.pool.can_grow(seq.seq_id, len(seq.token_ids)):
            return None
        self.pool.grow(seq.seq_id, len(seq.token_ids))
        self._waiting.remove(seq)
        self._running.append(seq)
        return seq

    def _chunk(self, seq: Sequence, budget: int) -> Chunk:
        num_tokens = min(seq.num_uncomputed, budget)
        return Chunk(
            seq=seq,
            start=seq.num_computed,
            num_tokens=num_tokens,
            is_last=num_tokens == seq.num_uncomputed,
        )
