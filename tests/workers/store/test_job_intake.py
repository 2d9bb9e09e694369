"""Making jobs: bounds, idempotency keys, batches of jobs."""

import pytest

from workers.errors import IdempotencyMismatch, InvalidText, QueueFull
from workers.protocol import JobLabels, JobStatus
from workers.store.jobs import Idempotency, JobFilters


def test_a_new_job_is_queued_with_all_that_was_asked(store, make, clock):
    labels = JobLabels(priority=7, project="film", shot="010", tags=("a", "b"), webhook_url="u")
    request = make.request(prompt="犬 'quoted' \\ \0 and NUL")
    created = store.jobs.create(request, labels, key_id="key_a", max_queued=1, batch_id="batch_1")
    job = store.jobs.get(created.job.id)
    assert (job, created.replayed) == (created.job, False)
    assert (job.request, job.labels, job.batch_id, job.key_id) == (
        request,
        labels,
        "batch_1",
        "key_a",
    )
    assert (job.status, job.queue_position, job.attempt, job.crashes) == ("queued", 0, 0, 0)
    assert (job.created_at, job.started_at, job.finished_at) == (clock.now, None, None)


def test_the_bound_counts_queued_jobs_only(store, make):
    make.job()
    store.jobs.claim("motion", "w", 30)
    store.jobs.create(make.request(), JobLabels(), key_id="key_a", max_queued=1)
    with pytest.raises(QueueFull, match="1 jobs are queued and 1 more would exceed the bound of 1"):
        store.jobs.create(make.request(), JobLabels(), key_id="key_b", max_queued=1)
    assert sum(store.jobs.counts().values()) == 2


def test_the_same_key_and_body_give_the_same_job_even_when_full(store, make):
    first = _create(store, make, Idempotency("k", "body"))
    again = _create(store, make, Idempotency("k", "body"))
    assert (again.job.id, again.replayed) == (first.job.id, True)
    assert sum(store.jobs.counts().values()) == 1


def test_a_replay_shows_the_job_as_it_is_now(store, make):
    _create(store, make, Idempotency("k", "body"))
    claim = store.jobs.claim("motion", "w", 30)
    assert _create(store, make, Idempotency("k", "body")).job.status == JobStatus.RUNNING
    assert claim is not None


def test_the_same_key_with_another_body_is_refused(store, make):
    _create(store, make, Idempotency("k", "body"))
    with pytest.raises(IdempotencyMismatch, match="'k'"):
        _create(store, make, Idempotency("k", "other"))
    assert sum(store.jobs.counts().values()) == 1


def test_keys_of_different_callers_are_different_keys(store, make):
    first = _create(store, make, Idempotency("k", "body"), key_id="key_a", max_queued=9)
    second = _create(store, make, Idempotency("k", "other"), key_id="key_b", max_queued=9)
    assert first.job.id != second.job.id


def test_a_refused_job_does_not_use_up_its_key(store, make):
    blocker = make.job()
    with pytest.raises(QueueFull):
        _create(store, make, Idempotency("k", "body"))
    store.jobs.request_cancel(blocker.id, None)
    assert not _create(store, make, Idempotency("k", "other")).replayed


def test_deleting_the_job_and_ageing_free_the_key(store, make, clock):
    first = _create(store, make, Idempotency("k", "body"))
    store.jobs.delete(first.job.id, "key_a")
    second = _create(store, make, Idempotency("k", "other"))
    clock.advance(101)
    assert store.jobs.forget_idempotency_keys(older_than_s=100) == 1
    third = _create(store, make, Idempotency("k", "third"), max_queued=9)
    assert len({first.job.id, second.job.id, third.job.id}) == 3


def test_many_jobs_come_back_in_the_order_of_the_items(store, make):
    items = [(make.request(prompt=str(n)), JobLabels(shot=str(n))) for n in range(25)]
    jobs = store.jobs.create_many(items, key_id="key_a", batch_id="batch_1", max_queued=25)
    assert [job.request.prompt for job in jobs] == [str(n) for n in range(25)]
    assert [job.queue_position for job in jobs] == list(range(25))
    listed = store.jobs.list(JobFilters(batch_id="batch_1"), order="asc", limit=99).jobs
    assert listed == jobs


def test_many_jobs_are_all_or_none(store, make):
    items = [(make.request(), JobLabels())] * 3
    with pytest.raises(QueueFull):
        store.jobs.create_many(items, key_id="key_a", batch_id="batch_1", max_queued=2)
    assert store.jobs.counts() == {}


@pytest.mark.parametrize(
    "labels",
    [
        JobLabels(project="a\0b"),
        JobLabels(tags=("ok", "\0")),
        JobLabels(webhook_url="http://x/\0"),
    ],
)
def test_labels_that_no_database_keeps_are_refused(store, make, labels):
    with pytest.raises(InvalidText):
        store.jobs.create(make.request(), labels, key_id="key_a", max_queued=9)


def _create(store, make, idempotency, *, key_id="key_a", max_queued=1):
    return store.jobs.create(
        make.request(), JobLabels(), key_id=key_id, max_queued=max_queued, idempotency=idempotency
    )
