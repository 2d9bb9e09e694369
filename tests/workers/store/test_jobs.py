"""What people do to jobs: cancel, retry, delete; and what housekeeping does."""

import json

import pytest

from workers.errors import JobNotFound, JobNotRetryable
from workers.protocol import JobError, JobLabels, JobProgress, JobStatus
from workers.store import job_intake, job_states
from workers.store.jobs import AttemptOutcome, Cancelled, Failed, Idempotency, JobFilters, Succeeded


def claim(store):
    return store.jobs.claim("motion", "w", 30.0)


def event_types(store, job):
    return [event.event_type for event in store.webhooks.of_job(job.id)]


def test_a_queued_job_is_cancelled_at_once_and_never_starts(store, make, clock):
    job = make.job()
    clock.advance(3)
    cancelled = store.jobs.request_cancel(job.id, "key_a")
    assert (cancelled.status, cancelled.finished_at) == ("cancelled", clock.now)
    assert claim(store) is None


def test_a_running_job_is_told_to_stop_and_may_still_succeed(store, make):
    job = make.job()
    got = claim(store)
    assert store.jobs.request_cancel(job.id, "key_a").status == JobStatus.CANCELLING
    assert store.jobs.request_cancel(job.id, "key_a").status == JobStatus.CANCELLING
    assert store.jobs.finish(got, Succeeded([]))
    assert store.jobs.get(job.id).status == JobStatus.SUCCEEDED


def test_cancelling_an_ended_job_changes_nothing(store, make, clock):
    job = make.job()
    store.jobs.finish(claim(store), Succeeded([make.artifact()]))
    before = store.jobs.get(job.id)
    clock.advance(9)
    assert store.jobs.request_cancel(job.id, "key_a") == before


def test_a_retry_starts_over_with_the_next_attempt(store, make):
    job = make.job()
    got = claim(store)
    progress = JobProgress(stage="s", step=1, steps=2, percent=50)
    store.jobs.heartbeat(got, 30, progress)
    store.jobs.finish(got, Failed(JobError(code="c", message="m")))
    again = store.jobs.retry(job.id, "key_a")
    assert (again.status, again.attempt, again.crashes) == ("queued", 1, 0)
    assert (again.error, again.progress, again.finished_at) == (None, None, None)
    assert again.request == job.request
    assert claim(store).attempt == 2
    assert not store.jobs.finish(got, Succeeded([]))


def test_a_dead_job_gets_its_crashes_forgiven(store, make, clock):
    job = make.job()
    claim(store)
    clock.advance(30)
    assert store.jobs.reap(max_crashes=1).dead[0].error.message == "worker lost once"
    store.jobs.retry(job.id, None)
    claim(store)
    clock.advance(30)
    assert [j.crashes for j in store.jobs.reap(max_crashes=2).requeued] == [1]


def test_only_ended_jobs_that_did_not_succeed_can_be_retried(store, make):
    job = make.job()
    with pytest.raises(JobNotRetryable, match="is queued"):
        store.jobs.retry(job.id, None)
    got = claim(store)
    with pytest.raises(JobNotRetryable, match="is running"):
        store.jobs.retry(job.id, None)
    store.jobs.finish(got, Succeeded([]))
    with pytest.raises(JobNotRetryable, match="is succeeded"):
        store.jobs.retry(job.id, None)


def test_deleting_an_ended_job_gives_its_files_and_leaves_no_row(store, make):
    job = make.job(tags=("t",), webhook_url="http://x/")
    store.jobs.finish(claim(store), Succeeded([make.artifact(path="jobs/j/1/v.mp4")]))
    assert store.jobs.delete(job.id, "key_a") == ["jobs/j/1/v.mp4", f"jobs/{job.id}"]
    with pytest.raises(JobNotFound):
        store.jobs.get(job.id)
    assert store.jobs.list(JobFilters(tag="t")).jobs == []
    assert event_types(store, job) == ["job.succeeded"]


def test_deleting_a_queued_job_tells_its_receiver(store, make):
    job = make.job(webhook_url="http://x/")
    store.jobs.delete(job.id, "key_a")
    assert event_types(store, job) == ["job.cancelled"]
    assert claim(store) is None


@pytest.mark.parametrize("told_to_stop", [True, False])
def test_deleting_a_running_job_makes_its_claim_stale(store, make, clock, told_to_stop):
    job = make.job(webhook_url="http://x/")
    got = claim(store)
    if told_to_stop:
        store.jobs.request_cancel(job.id, None)
    store.jobs.delete(job.id, "key_a")
    assert not store.jobs.heartbeat(got, 30, None).held
    assert not store.jobs.finish(got, Succeeded([make.artifact()]))
    assert not store.jobs.release(got)
    for call in (store.jobs.get, store.jobs.attempts):
        with pytest.raises(JobNotFound):
            call(job.id)
    assert (store.jobs.list().jobs, store.jobs.counts()) == ([], {})
    assert event_types(store, job) == ["job.cancelled"]
    clock.advance(59)
    assert store.jobs.purge(older_than_s=60) == []
    clock.advance(1)
    assert store.jobs.purge(older_than_s=60) == [f"jobs/{job.id}"]
    assert store.jobs.purge(older_than_s=60) == []


def test_stale_queued_jobs_are_sent_again_once_per_interval(store, make, clock):
    job = make.job()
    clock.advance(59)
    assert store.jobs.queued_older_than(60) == []
    clock.advance(1)
    assert [j.id for j in store.jobs.queued_older_than(60)] == [job.id]
    assert store.jobs.queued_older_than(60) == []
    clock.advance(60)
    claim(store)
    assert store.jobs.queued_older_than(60) == []


def test_each_end_writes_one_event_with_what_happened(store, make, clock):
    job = make.job(webhook_url="http://x/", project="film", shot="010", tags=("t",))
    store.jobs.finish(claim(store), Failed(JobError(code="c", message="m")))
    store.jobs.retry(job.id, None)
    clock.advance(1)
    store.jobs.finish(claim(store), Cancelled())
    store.jobs.retry(job.id, None)
    store.jobs.finish(claim(store), Succeeded([make.artifact()]))
    assert event_types(store, job) == ["job.failed", "job.cancelled", "job.succeeded"]
    failed, _, succeeded = (json.loads(e.body) for e in store.webhooks.of_job(job.id))
    assert failed["data"]["error"] == {"code": "c", "message": "m"}
    data = succeeded["data"]
    assert (data["id"], data["kind"], data["status"]) == (job.id, "image_to_video", "succeeded")
    assert (data["project"], data["shot"], data["tags"], data["attempt"]) == (
        "film",
        "010",
        ["t"],
        3,
    )
    assert [a["name"] for a in data["artifacts"]] == ["video.mp4"]
    outcomes = [a.outcome for a in store.jobs.attempts(job.id)]
    wanted = [AttemptOutcome.FAILED, AttemptOutcome.CANCELLED, AttemptOutcome.SUCCEEDED]
    assert outcomes == wanted


def test_without_a_webhook_url_no_event_is_written(store, make):
    job = make.job()
    store.jobs.request_cancel(job.id, None)
    assert event_types(store, job) == []


def test_state_and_event_are_written_together_or_not_at_all(store, make, monkeypatch):
    job = make.job(webhook_url="http://x/")
    got = claim(store)
    with monkeypatch.context() as patch:
        patch.setattr(job_states, "write_event", _crash)
        with pytest.raises(RuntimeError):
            store.jobs.finish(got, Succeeded([make.artifact()]))
    assert store.jobs.get(job.id).status == JobStatus.RUNNING
    assert store.jobs.finish(got, Succeeded([make.artifact()]))
    assert event_types(store, job) == ["job.succeeded"]


def test_job_and_idempotency_key_are_written_together_or_not_at_all(store, make, monkeypatch):
    def create(fingerprint):
        key = Idempotency("k", fingerprint)
        return store.jobs.create(
            make.request(), JobLabels(), key_id="key_a", max_queued=9, idempotency=key
        )

    with monkeypatch.context() as patch:
        patch.setattr(job_intake, "_keep_key", _crash)
        with pytest.raises(RuntimeError):
            create("lost")
    assert store.jobs.counts() == {}
    assert not create("fresh").replayed


def _crash(*_):
    raise RuntimeError("the process dies here")
