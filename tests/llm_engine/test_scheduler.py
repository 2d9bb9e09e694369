"""The scheduler as a stateful machine, and single decisions by example."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.kv_cache import KVCache
from llm_engine.scheduler import Scheduler
from llm_engine.scheduling.step_plan import StepPlan
from llm_engine.scheduling.waiting import AGING_STEPS
from llm_engine.sequence import Sequence

NUM_PAGES, PAGE_SIZE, MAX_SEQS, CHUNK = 10, 4, 3, 8


def _seq(seq_id: int, prompt: int, answer: int, priority: int = 0) -> Sequence:
    return Sequence(
        seq_id=seq_id,
        token_ids=[1] * prompt,
        num_prompt_tokens=prompt,
        max_total_tokens=prompt + answer,
        priority=priority,
    )


def _scheduler() -> Scheduler:
    layout = CacheLayout.single(page_tokens=PAGE_SIZE, bytes_per_token=1)
    cache = KVCache(layout, [NUM_PAGES])
    return Scheduler(cache, max_num_seqs=MAX_SEQS, prefill_chunk_tokens=CHUNK)


def _step(scheduler: Scheduler) -> tuple[StepPlan, list[Sequence]]:
    """Run a step as an engine would; returns what was planned and who finished."""
    plan = scheduler.schedule()
    finished = []
    for chunk in plan.chunks:
        scheduler.commit(chunk)
        if chunk.is_last:
            chunk.seq.token_ids.append(1)
            if len(chunk.seq.token_ids) == chunk.seq.max_total_tokens:
                scheduler.remove(chunk.seq)
                finished.append(chunk.seq)
    return plan, finished


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = _scheduler()
        self.cache = self.scheduler.cache
        self.pool = self.cache.pools[0]
        self.live: dict[int, Sequence] = {}
        self.num_added = 0

    @rule(prompt=st.integers(1, 30), answer=st.integers(1, 10), priority=st.integers(-2, 2))
    def add(self, prompt: int, answer: int, priority: int) -> None:
        seq = _seq(self.num_added, prompt, answer, priority)
        self.num_added += 1
        self.live[seq.seq_id] = seq
        self.scheduler.add(seq)

    @rule(choice=st.integers(0, 1000))
    def abort(self, choice: int) -> None:
        if self.live:
            seq_id = sorted(self.live)[choice % len(self.live)]
            self.scheduler.remove(self.live.pop(seq_id))
            assert not self.cache.table(seq_id)

    @rule()
    def step(self) -> None:
        self.check_step()

    @rule()
    def drain(self) -> None:
        """Everything that is in finishes, in a bounded number of steps: nothing starves."""
        bound = 20 + sum(4 * seq.max_total_tokens for seq in self.live.values())
        for _ in range(bound):
            if not self.scheduler.has_work:
                break
            self.check_step()
        assert not self.live
        assert self.pool.num_used == 0

    def check_step(self) -> None:
        had_work = self.scheduler.has_work
        plan, finished = _step(self.scheduler)
        assert bool(plan.chunks) == had_work
        sizes = [chunk.num_tokens for chunk in plan.chunks]
        assert sum(size for size in sizes if size > 1) <= CHUNK
        assert sizes == sorted(sizes, key=lambda size: size > 1)
        seq_ids = [chunk.seq.seq_id for chunk in plan.chunks]
        assert len(set(seq_ids)) == len(seq_ids)
        assert not {seq.seq_id for seq in plan.preempted} & set(seq_ids)
        for seq in finished:
            del self.live[seq.seq_id]

    @invariant()
    def books_balance(self) -> None:
        self.cache.check_integrity()
        assert self.pool.num_free + self.pool.num_used + self.pool.num_cached == NUM_PAGES
        assert self.scheduler.num_running <= MAX_SEQS
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.live)
        for seq in self.live.values():
            assert 0 <= seq.num_computed <= len(seq.token_ids)
            assert len(self.cache.table(seq.seq_id)) * PAGE_SIZE >= seq.num_computed


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_prompts_are_cut_into_chunks_beside_decodes() -> None:
    scheduler = _scheduler()
    scheduler.add(_seq(0, 2, 9))
    _step(scheduler)
    scheduler.add(_seq(1, 20, 2))
    plans = [_step(scheduler)[0] for _ in range(3)]
    chunks = [[(c.seq.seq_id, c.start, c.num_tokens) for c in plan.chunks] for plan in plans]
    assert chunks[0] == [(0, 2, 1), (1, 0, 8)]
    assert chunks[1] == [(0, 3, 1), (1, 8, 8)]
    assert chunks[2] == [(0, 4, 1), (1, 16, 4)]


def test_the_lowest_rank_is_preempted_and_computed_again() -> None:
    scheduler = _scheduler()
    first, second = _seq(0, 16, 20), _seq(1, 16, 20)
    second.token_ids[0] = 2  # else the two would share every page
    scheduler.add(first)
    scheduler.add(second)
    while not scheduler.num_preemptions:
        plan, _ = _step(scheduler)
    assert plan.preempted == (second,)
    assert second.num_computed == 0
    assert len(second.token_ids) > 16
    while scheduler.has_work:
        _step(scheduler)
    assert len(first.token_ids) == len(second.token_ids) == 36


def test_a_smaller_priority_number_runs_sooner() -> None:
    scheduler = _scheduler()
    for seq_id, priority in enumerate((2, 0, 1)):
        scheduler.add(_seq(seq_id, 8, 1, priority))
    order = [seq.seq_id for _ in range(3) for seq in _step(scheduler)[1]]
    assert order == [1, 2, 0]


def test_waiting_raises_the_rank_until_served() -> None:
    """A steady stream of urgent work delays a patient request, but not forever."""
    scheduler = _scheduler()
    scheduler.add(_seq(0, 8, 1, priority=1))
    for step in range(3 * AGING_STEPS):
        scheduler.add(_seq(step + 1, 8, 1, priority=0))
        _, finished = _step(scheduler)
        if any(seq.seq_id == 0 for seq in finished):
            return
    raise AssertionError("starved")
