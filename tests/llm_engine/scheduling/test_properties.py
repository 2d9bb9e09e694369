"""The scheduler under random traffic: pages, drafts, delays, deadlines, vanished clients."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.cache.groups import CacheGroup, CacheLayout, GroupKind
from llm_engine.cache.kv_cache import KVCache
from llm_engine.scheduler import SCORED_CHUNK_TOKENS, Scheduler
from llm_engine.scheduling.step_time import StepShape, StepTimeModel
from llm_engine.sequence import Chunk, Sequence

PAGE = 4


def scheduler_of(num_pages: int, *, chunk: int = 16, max_num_seqs: int = 4, **settings_: object):
    cache = KVCache(CacheLayout.single(page_tokens=PAGE, bytes_per_token=1), [num_pages])
    return Scheduler(cache, max_num_seqs=max_num_seqs, prefill_chunk_tokens=chunk, **settings_)  # type: ignore[arg-type]


def make(seq_id: int, prompt: int, answer: int, **fields: object) -> Sequence:
    ids = [seq_id % 3] * prompt
    return Sequence(seq_id, ids, prompt, prompt + answer, **fields)  # type: ignore[arg-type]


def advance(scheduler: Scheduler, chunk: Chunk, num_accepted: int) -> bool:
    """What sampling and the engine do after a step; true when the sequence has ended."""
    seq = chunk.seq
    if chunk.is_last:
        accepted = min(num_accepted, chunk.num_drafts)
        seq.token_ids.extend([*seq.draft_ids[:accepted], 7])
    scheduler.commit(chunk)
    seq.draft_ids = ()
    if len(seq.token_ids) < seq.max_total_tokens:
        return False
    scheduler.remove(seq)
    return True


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_drafts_cost_no_page_for_good_and_no_token(data: st.DataObject) -> None:
    scheduler = scheduler_of(data.draw(st.integers(10, 30)))
    live: dict[int, Sequence] = {}
    for step in range(data.draw(st.integers(5, 60))):
        if data.draw(st.booleans()):
            seq = make(step, data.draw(st.integers(1, 20)), data.draw(st.integers(1, 16)))
            live[step] = seq
            scheduler.add(seq)
        for seq in scheduler.running:
            seq.draft_ids = tuple([8] * data.draw(st.integers(0, 4)))
        plan = scheduler.schedule()
        for chunk in plan.chunks:
            seq = chunk.seq
            known = len(seq.token_ids)
            assert chunk.num_tokens >= 1 + chunk.num_drafts
            assert len(chunk.token_ids) == chunk.num_tokens
            if chunk.num_drafts:
                assert chunk.is_last
                assert chunk.start == known - 1
                assert chunk.num_logits == 1 + chunk.num_drafts
                assert known + chunk.num_drafts < seq.max_total_tokens
            assert len(scheduler.cache.table(seq.seq_id)) * PAGE >= chunk.end
        for chunk in plan.chunks:
            before = len(chunk.seq.token_ids)
            ended = advance(scheduler, chunk, data.draw(st.integers(0, 4)))
            if ended:
                del live[chunk.seq.seq_id]
            elif chunk.is_last:
                assert chunk.seq.num_uncomputed == 1
                assert len(chunk.seq.token_ids) > before
        scheduler.cache.check_integrity()
        pool = scheduler.cache.pools[0]
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_pages


def test_the_tree_never_holds_a_refused_draft() -> None:
    scheduler = scheduler_of(30)
    seq = make(0, 7, 30)
    scheduler.add(seq)
    while scheduler.has_work:
        seq.draft_ids = (8, 8, 8)
        for chunk in scheduler.schedule().chunks:
            advance(scheduler, chunk, 0)
    keys = b"".join(node.key for node in scheduler.cache.tree.nodes.values())
    assert 7 in memoryview(keys)
    assert 8 not in memoryview(keys)


def test_accepted_drafts_are_computed_once() -> None:
    scheduler = scheduler_of(30)
    seq = make(0, 4, 40)
    scheduler.add(seq)
    steps = 0
    while scheduler.has_work:
        seq.draft_ids = (7, 7, 7)
        for chunk in scheduler.schedule().chunks:
            advance(scheduler, chunk, 3)
        steps += 1
    assert steps <= 2 + 40 // 4


def test_a_state_cannot_take_a_draft_back() -> None:
    groups = (
        CacheGroup(name="full", kind=GroupKind.FULL, page_tokens=PAGE, page_bytes=1),
        CacheGroup(
            name="state", kind=GroupKind.STATE, page_tokens=PAGE, page_bytes=1, checkpoint_tokens=8
        ),
    )
    cache = KVCache(CacheLayout(groups), [20, 6])
    scheduler = Scheduler(cache, max_num_seqs=2, prefill_chunk_tokens=64)
    seq = make(0, 20, 6)
    scheduler.add(seq)
    borders = []
    while scheduler.has_work:
        seq.draft_ids = (7, 7)
        for chunk in scheduler.schedule().chunks:
            assert chunk.num_drafts == 0
            borders.append(chunk.end)
            advance(scheduler, chunk, 0)
    assert borders[:3] == [8, 16, 20]


@settings(max_examples=60, deadline=None)
@given(
    bound=st.floats(2e-3, 0.2),
    prompts=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    num_answers=st.integers(1, 3),
)
def test_prompts_delay_answers_within_the_bound(
    bound: float, prompts: list[int], num_answers: int
) -> None:
    """Under the model that was fitted, and on a machine that is as the model says."""

    def true_s(shape: StepShape) -> float:
        return 2e-3 + 1e-3 * shape.prompt_tokens + 2e-4 * shape.answer_rows

    model = StepTimeModel()
    for prompt, rows in product((0, 0, 64, 128, 256), (0, 1, 4)):
        model.observe(StepShape(prompt, rows, 0), true_s(StepShape(prompt, rows, 0)))
    scheduler = scheduler_of(
        800, chunk=256, max_num_seqs=16, max_step_delay_s=bound, step_time=model
    )
    for i in range(num_answers):
        scheduler.add(make(i, 1, 400))
    for chunk in scheduler.schedule().chunks:
        advance(scheduler, chunk, 0)
    for i, prompt in enumerate(prompts, start=100):
        scheduler.add(Sequence(i, [i] * prompt, prompt, prompt + 1))
    for _ in range(300):
        plan = scheduler.schedule()
        shape = plan.shape
        assert shape.answer_rows >= num_answers
        alone = StepShape(0, shape.answer_rows, 0)
        if shape.prompt_tokens > 1:
            assert true_s(shape) - true_s(alone) <= bound * 1.01 + 1e-5
        model.observe(shape, true_s(shape))
        for chunk in plan.chunks:
            advance(scheduler, chunk, 0)
        if scheduler.num_running == num_answers:
            break
    assert scheduler.num_running + scheduler.num_waiting <= num_answers + len(prompts)


def test_without_answers_a_prompt_takes_the_whole_chunk() -> None:
    scheduler = scheduler_of(100, chunk=256, max_step_delay_s=1e-9)
    scheduler.add(make(0, 300, 4))
    (chunk,) = scheduler.schedule().chunks
    assert chunk.num_tokens == 256


def test_a_scored_prompt_comes_in_bounded_chunks_with_all_rows() -> None:
    scheduler = scheduler_of(200, chunk=512)
    scheduler.add(make(0, 300, 2, wants_prompt_logits=True))
    (chunk,) = scheduler.schedule().chunks
    assert chunk.num_tokens == chunk.num_logits == SCORED_CHUNK_TOKENS


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(1, 12),
    steps=st.integers(0, 12),
    gone=st.sets(st.integers(0, 11), min_size=1),
)
def test_vanished_clients_pages_are_back_at_once(num: int, steps: int, gone: set[int]) -> None:
    scheduler = scheduler_of(24)
    seqs = [make(i, 5 + i, 20) for i in range(num)]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(steps):
        for chunk in scheduler.schedule().chunks:
            advance(scheduler, chunk, 0)
    for i in gone:
        if i < num:
            scheduler.remove(seqs[i])
            assert not scheduler.cache.table(i)
    scheduler.cache.check_integrity()
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert plan.chunks
        assert not {chunk.seq.seq_id for chunk in plan.chunks} & gone
        for chunk in plan.chunks:
            advance(scheduler, chunk, 0)
    assert scheduler.cache.pools[0].num_used == 0


def test_choices_of_one_prompt_share_its_pages() -> None:
    scheduler = scheduler_of(60, chunk=64, max_num_seqs=8)
    seqs = [Sequence(i, list(range(41)), 41, 50) for i in range(4)]
    for seq in seqs:
        scheduler.add(seq)
    computed = 0
    for _ in range(3):
        for chunk in scheduler.schedule().chunks:
            computed += chunk.num_tokens if chunk.start < 41 else 0
            advance(scheduler, chunk, 0)
    assert [seq.num_cached_tokens for seq in seqs] == [0, 40, 40, 40]
    assert computed == 41 + 3
    tables = [tuple(scheduler.cache.table(seq.seq_id))[:10] for seq in seqs]
    assert len(set(tables)) == 1


def test_copied_sequences_come_back_as_they_were() -> None:
    from llm_engine.scheduling.preemption import PreemptionPolicy

    layout = CacheLayout.single(page_tokens=PAGE, bytes_per_token=1)
    cache = KVCache(layout, [10], host_bytes=1000, has_prefix_cache=False)

    class Pages:
        def copy_out(self, group: int, pages: list[int]) -> list[int]:
            return list(pages)

        def copy_in(self, group: int, pages: list[int], contents: list[int]) -> None: ...

        def copy(self, group: int, source: int, target: int) -> None: ...

        def give_back(self, group: int, pages: list[int]) -> None: ...

    cache.attach(Pages())  # type: ignore[arg-type]
    policy = PreemptionPolicy("copy", StepTimeModel(), 1.0, 1e9, lambda decision: None)
    scheduler = Scheduler(cache, max_num_seqs=3, prefill_chunk_tokens=16, preemption=policy)
    for i in range(3):
        scheduler.add(make(i, 8, 20))
    computed = 0
    while scheduler.has_work:
        plan = scheduler.schedule()
        for chunk in plan.chunks:
            computed += chunk.num_tokens
            advance(scheduler, chunk, 0)
    assert scheduler.num_copied_preemptions == scheduler.num_preemptions > 0
    assert computed == 3 * 27
    assert cache.host.used_bytes == 0
