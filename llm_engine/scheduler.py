"""What runs in the next step. Decisions only: no tensors, no clock, no randomness.

A step first gives every answering sequence its one token and its drafts, then spends
`prefill_chunk_tokens` on prompts: those already running, then those waiting. While answers run,
prompts get only what keeps the step within `max_step_delay_s`, by a model fitted to the measured
steps. When a running sequence needs a page and none is left, the running sequence of lowest rank
gives up its pages, by copy to the host tier or by being computed again.

Running sequences rank by priority (smaller first), then arrival. Waiting ones take turns by
tenant inside a priority class, and gain a class as they wait.
"""

from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.scheduling.budget import PromptBudget
from llm_engine.scheduling.deadlines import Deadlines
from llm_engine.scheduling.followers import Followers
from llm_engine.scheduling.preemption import PreemptionPolicy
from llm_engine.scheduling.shares import TenantShares
from llm_engine.scheduling.step_plan import StepPlan
from llm_engine.scheduling.step_time import StepTimeModel
from llm_engine.scheduling.waiting import WaitingLine
from llm_engine.sequence import Chunk, Sequence

SCORED_CHUNK_TOKENS = 128  # rows whose logits are all kept: a row is a vocabulary wide


class Scheduler:
    """Running and waiting sequences over one cache.

    Invariants: a sequence is running, waiting or unknown; only running ones own pages; at most
    `max_num_seqs` run. The cache must hold any single sequence at its full length, so the running
    sequence of highest rank always advances.
    """

    def __init__(
        self,
        cache: SequenceCache,
        *,
        max_num_seqs: int,
        prefill_chunk_tokens: int,
        max_step_delay_s: float | None = None,
        step_time: StepTimeModel | None = None,
        preemption: PreemptionPolicy | None = None,
    ) -> None:
        """Start empty. Units: `prefill_chunk_tokens` prompt tokens in one step."""
        self.cache = cache
        self.step_time = step_time or StepTimeModel()
        self.num_preemptions = 0
        self.num_copied_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._max_step_delay_s = max_step_delay_s
        self._preemption = preemption
        self._shares = TenantShares()
        self._waiting = WaitingLine(self._shares)
        self._deadlines = Deadlines()
        self._running: list[Sequence] = []
        self._running_ids: set[int] = set()
        self._followers = Followers(self._waiting)
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
    def running(self) -> tuple[Sequence, ...]:
        """The sequences with a slot."""
        return tuple(self._running)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running) or len(self._waiting) > 0

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; the cache must be able to hold it at its full length."""
        assert seq.max_total_tokens <= self.cache.capacity_tokens
        seq.arrival = self._num_arrivals
        self._num_arrivals += 1
        self._shares.enter(seq.tenant)
        self._deadlines.add(seq)
        self._enqueue(seq)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence, finished or aborted; its slot and pages are free at once."""
        if seq in self._waiting:
            self._waiting.remove(seq)
        elif seq.seq_id in self._running_ids:
            self._stop(seq)
        else:
            return
        self._shares.leave(seq.tenant)
        self._deadlines.remove(seq)
        self.cache.release(seq)
        self._followers.wake(seq)

    def begin_anew(self) -> None:
        """Let all that run wait and be computed again from their tokens: the cache is lost."""
        for seq in self.running:
            seq.draft_ids = ()
            self._drop_pages(seq)
        self.cache.lose()

    def take_expired(self, now_s: float) -> list[Sequence]:
        """Sequences whose deadline has passed, each once; the caller removes them."""
        return self._deadlines.take_expired(now_s)

    def schedule(self) -> StepPlan:
        """Choose the next step's chunks and allocate their pages.

        The caller computes them and then reports each through `commit`.
        """
        self._step += 1
        self._waiting.age(self._step)
        self._running.sort(key=_rank)
        budget = PromptBudget(self._prefill_chunk_tokens, self._bound_s(), self.step_time)
        chunks, preempted = self._continue_running(budget)
        while not preempted and budget.num_tokens > 0:
            chunk = self._start_next(budget)
            if chunk is None:
                break
            chunks.append(chunk)
        for chunk in chunks:
            self._shares.charge(chunk.seq.tenant, chunk.num_tokens)
        chunks.sort(key=lambda chunk: chunk.num_tokens > 1)
        return StepPlan(chunks=tuple(chunks), preempted=tuple(preempted))

    def commit(self, chunk: Chunk) -> None:
        """Record what of a chunk is in the cache for good, once its sequence has advanced.

        Drafts count as far as they equal the tokens that were appended.
        """
        seq = chunk.seq
        assert seq.num_computed == chunk.start
        known = chunk.end - chunk.num_drafts
        appended = seq.token_ids[known : chunk.end]
        accepted = 0
        for draft, token in zip(seq.draft_ids, appended, strict=False):
            if draft != token:
                break
            accepted += 1
        seq.num_computed = known + accepted
        if accepted and seq.num_computed == len(seq.token_ids):
            seq.num_computed -= 1  # the last known token is always due
        if seq.seq_id not in self._running_ids:
            return
        if not seq.has_failed:
            self.cache.commit(seq)
        self._followers.wake(seq, up_to=seq.num_computed)

    def _bound_s(self) -> float | None:
        """The delay that prompts may add, while there is an answer to delay."""
        is_answering = any(seq.num_uncomputed == 1 for seq in self._running)
        return self._max_step_delay_s if is_answering else None

    def _continue_running(self, budget: PromptBudget) -> tuple[list[Chunk], list[Sequence]]:
        """Chunks for the running, best rank first; the last ones may lose their pages for it."""
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        position = 0
        while position < len(self._running):
            seq = self._running[position]
            num_tokens = 1
            if seq.num_uncomputed > 1:
                num_tokens = self._prompt_tokens(seq, budget)
            if num_tokens and not self._make_room(seq, seq.num_computed + num_tokens, preempted):
                break
            position += 1
            if num_tokens:
                chunks.append(self._chunk(seq, num_tokens))
                if seq.num_uncomputed > 1:
                    budget.spend(seq.num_computed, num_tokens)
        return chunks, preempted

    def _make_room(self, seq: Sequence, num_tokens: int, preempted: list[Sequence]) -> bool:
        """Pages for a running sequence; false if it had to give up its own."""
        while not self.cache.can_grow(seq.seq_id, num_tokens):
            # Only pages of the same part make room; `seq` itself is the last to be found.
            part = self.cache.part_of(seq.seq_id)
            victim = next(
                each for each in reversed(self._running) if self.cache.part_of(each.seq_id) == part
            )
            self._preempt(victim)
            preempted.append(victim)
            if victim is seq:
                return False
        self.cache.grow(seq.seq_id, num_tokens)
        return True

    def _start_next(self, budget: PromptBudget) -> Chunk | None:
        """Admit the first in line, if a slot and all pages for its known tokens are there."""
        while len(self._running) < self._max_num_seqs:
            seq = self._waiting.first()
            if seq is None or self.cache.num_available(0) < len(self._running):
                return None
            admission = self.cache.admit(seq)
            if admission.leader is not None:
                self._followers.park(seq, admission.leader, admission.leader_tokens)
                continue
            if not admission.is_admitted:
                return None
            self._shares.advance(seq.tenant)
            self._waiting.remove(seq)
            self._running.append(seq)
            self._running_ids.add(seq.seq_id)
            return self._first_chunk(seq, admission.num_tokens, budget)
        return None

    def _first_chunk(self, seq: Sequence, num_tokens: int, budget: PromptBudget) -> Chunk | None:
        seq.num_computed = num_tokens
        if not seq.has_run:
            seq.num_cached_tokens = num_tokens
            seq.has_run = True
        wanted = self._prompt_tokens(seq, budget)
        if not wanted or not self.cache.can_grow(seq.seq_id, num_tokens + wanted):
            return None  # it runs; its pages or its time come in a later step
        self.cache.grow(seq.seq_id, num_tokens + wanted)
        budget.spend(num_tokens, wanted)
        return self._chunk(seq, wanted)

    def _prompt_tokens(self, seq: Sequence, budget: PromptBudget) -> int:
        """How much of a prompt the step takes; it stops where a state is to be kept."""
        most = seq.num_uncomputed
        if seq.wants_prompt_logits:
            most = min(most, SCORED_CHUNK_TOKENS)
        border = self.cache.layout.next_state_border(seq.num_computed)
        if border is not None:
            most = min(most, border - seq.num_computed)
        return budget.affordable(seq.num_computed, most)

    def _chunk(self, seq: Sequence, num_tokens: int) -> Chunk:
        is_last = num_tokens == seq.num_uncomputed
        num_drafts = self._num_drafts(seq) if is_last else 0
        if num_drafts:
            self.cache.grow(seq.seq_id, len(seq.token_ids) + num_drafts)
        return Chunk(seq, seq.num_computed, num_tokens + num_drafts, is_last, num_drafts)

    def _num_drafts(self, seq: Sequence) -> int:
        """The drafts that length and pages allow; nobody is preempted for a guess."""
        known = len(seq.token_ids)
        num_drafts = min(len(seq.draft_ids), seq.max_total_tokens - known - 1)
        if num_drafts <= 0 or self.cache.layout.has_state or seq.num_uncomputed > 1:
            return 0
        while num_drafts and not self.cache.can_grow(seq.seq_id, known + num_drafts):
            num_drafts -= 1
        return num_drafts

    def _preempt(self, seq: Sequence) -> None:
        self.num_preemptions += 1
        policy = self._preemption
        if policy and policy.should_copy(seq.num_computed) and self.cache.swap_out(seq):
            self.num_copied_preemptions += 1
            self._wait_again(seq)
        else:
            self._drop_pages(seq)

    def _drop_pages(self, seq: Sequence) -> None:
        self.cache.release(seq)
        seq.num_computed = 0
        self._wait_again(seq)

    def _wait_again(self, seq: Sequence) -> None:
        self._stop(seq)
        self._followers.wake(seq)
        self._enqueue(seq)

    def _stop(self, seq: Sequence) -> None:
        self._running.remove(seq)
        self._running_ids.remove(seq.seq_id)

    def _enqueue(self, seq: Sequence) -> None:
        seq.queued_at_step = self._step
        self._waiting.push(seq)


def _rank(seq: Sequence) -> tuple[int, int]:
    return (seq.priority, seq.arrival)
