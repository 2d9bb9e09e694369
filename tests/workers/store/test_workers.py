"""The directory of workers."""

from workers.protocol import WorkerFacts, WorkerState


def facts(clock, worker_id="video-1", state=WorkerState.IDLE):
    return WorkerFacts(
        id=worker_id,
        role="video",
        model="motion",
        state=state,
        card={"license": "Apache-2.0", "sizes": [1, 2]},
        started_at=clock.now,
        beat_at=clock.now,
    )


def test_the_last_word_of_a_worker_counts(store, clock):
    store.workers.publish(facts(clock, state=WorkerState.LOADING))
    clock.advance(1)
    last = facts(clock, state=WorkerState.BUSY)
    store.workers.publish(last)
    assert store.workers.list() == [last]


def test_silent_workers_are_left_out_on_request(store, clock):
    store.workers.publish(facts(clock, "old"))
    clock.advance(31)
    store.workers.publish(facts(clock, "new"))
    assert [w.id for w in store.workers.list(max_age_s=30)] == ["new"]
    assert [w.id for w in store.workers.list(max_age_s=31)] == ["new", "old"]
    assert [w.id for w in store.workers.list()] == ["new", "old"]


def test_a_forgotten_worker_is_gone(store, clock):
    store.workers.publish(facts(clock))
    store.workers.forget("video-1")
    store.workers.forget("video-1")
    assert store.workers.list() == []
