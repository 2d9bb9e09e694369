"""Claim, heartbeat, finish, release and reap, one at a time."""

import json

import pytest

from workers.protocol import JobError, JobProgress, JobStatus
from workers.store.jobs import AttemptOutcome, Cancelled, Failed, Succeeded

LEASE_S = 30.0


def claim(store, worker="w1", model="motion", **kwargs):
    return store.jobs.claim(model, worker, LEASE_S, **kwargs)


def test_the_best_job_is_the_one_of_smallest_priority_then_the_oldest(store, make):
    low, old, young, high = (make.job(priority=p) for p in (1, 0, 0, -5))
    make.job(model="other", priority=-100)
    taken = [claim(store).job_id for _ in range(4)]
    assert taken == [high.id, old.id, young.id, low.id]
    assert claim(store) is None


def test_a_claim_carries_the_request_and_starts_the_job(store, make, clock):
    job = make.job()
    clock.advance(5)
    got = claim(store)
    now = store.jobs.get(job.id)
    assert (got.request, got.attempt, got.worker) == (job.request, 1, "w1")
    assert (now.status, now.started_at, now.queue_position) == ("running", clock.now, None)


def test_a_beat_extends_the_lease_from_now(store, make, clock):
    make.job()
    got = claim(store)
    clock.advance(LEASE_S - 1)
    assert store.jobs.heartbeat(got, LEASE_S, None).held
    clock.advance(LEASE_S - 1)
    assert store.jobs.reap(max_crashes=3).requeued == []
    clock.advance(1)
    assert len(store.jobs.reap(max_crashes=3).requeued) == 1


def test_progress_is_recorded_and_never_falls(store, make):
    job = make.job()
    got = claim(store)
    for percent in (40.0, 10.0):
        store.jobs.heartbeat(got, LEASE_S, _progress(percent))
    shown = store.jobs.get(job.id).progress
    assert (shown.percent, shown.step) == (40.0, 10)


def test_only_a_success_is_all_of_a_job(store, make):
    shown = {}
    for outcome in (Succeeded(()), Failed(JobError(code="x", message="y"))):
        job = make.job()
        got = claim(store)
        store.jobs.heartbeat(got, LEASE_S, _progress(95.0))
        assert store.jobs.finish(got, outcome)
        shown[type(outcome)] = store.jobs.get(job.id).progress
    done, broken = shown[Succeeded], shown[Failed]
    assert (done.step, done.percent, done.eta_seconds) == (100, 100.0, 0.0)
    assert (broken.step, broken.percent) == (95, 95.0)


def test_a_beat_tells_of_a_cancel(store, make):
    job = make.job()
    got = claim(store)
    assert not store.jobs.heartbeat(got, LEASE_S, None).cancel_requested
    store.jobs.request_cancel(job.id, "key_a")
    beat = store.jobs.heartbeat(got, LEASE_S, None)
    assert (beat.held, beat.cancel_requested) == (True, True)


def test_success_keeps_the_artifacts_in_order(store, make, clock):
    job = make.job()
    got = claim(store)
    clock.advance(9)
    files = [make.artifact("video.mp4", "b"), make.artifact("poster.webp", "a")]
    assert store.jobs.finish(got, Succeeded(files))
    done = store.jobs.get(job.id)
    assert (done.status, done.artifacts, done.finished_at) == ("succeeded", tuple(files), clock.now)


def test_failure_keeps_the_reason(store, make):
    job = make.job()
    error = JobError(code="bad_image", message="truncated \0 file")
    assert store.jobs.finish(claim(store), Failed(error))
    failed = store.jobs.get(job.id)
    assert (failed.status, failed.error) == ("failed", error)


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_worker_that_stopped_ends_the_job_as_cancelled(store, make, cancel_first):
    job = make.job()
    got = claim(store)
    if cancel_first:
        store.jobs.request_cancel(job.id, None)
    assert store.jobs.finish(got, Cancelled())
    assert store.jobs.get(job.id).status == JobStatus.CANCELLED


def test_a_stale_token_changes_nothing(store, make, clock):
    job = make.job()
    stale = claim(store, "w1")
    clock.advance(LEASE_S)
    store.jobs.reap(max_crashes=3)
    fresh = claim(store, "w2")
    before = store.jobs.get(job.id)
    clock.advance(1)
    assert not store.jobs.heartbeat(stale, LEASE_S, _progress(99)).held
    assert not store.jobs.finish(stale, Succeeded([make.artifact()]))
    assert not store.jobs.release(stale)
    assert store.jobs.get(job.id) == before
    assert (stale.attempt, fresh.attempt) == (1, 2)
    assert store.jobs.finish(fresh, Succeeded([]))
    assert store.jobs.get(job.id).artifacts == ()


def test_a_second_finish_is_refused(store, make):
    job = make.job()
    got = claim(store)
    assert store.jobs.finish(got, Succeeded([]))
    assert not store.jobs.finish(got, Failed(JobError(code="x", message="y")))
    assert store.jobs.get(job.id).status == JobStatus.SUCCEEDED


def test_release_gives_the_job_back_without_a_crash(store, make):
    job = make.job()
    got = claim(store)
    store.jobs.heartbeat(got, LEASE_S, _progress(50))
    assert store.jobs.release(got)
    back = store.jobs.get(job.id)
    assert (back.status, back.crashes, back.progress, back.started_at) == ("queued", 0, None, None)
    assert [a.outcome for a in store.jobs.attempts(job.id)] == [AttemptOutcome.RELEASED]
    assert claim(store).attempt == 2


def test_release_of_a_job_told_to_stop_cancels_it(store, make):
    job = make.job(webhook_url="http://x/")
    got = claim(store)
    store.jobs.request_cancel(job.id, None)
    assert store.jobs.release(got)
    assert store.jobs.get(job.id).status == JobStatus.CANCELLED
    assert [e.event_type for e in store.webhooks.of_job(job.id)] == ["job.cancelled"]


def test_a_job_that_loses_every_worker_is_dead_after_three(store, make, clock):
    poison, innocent = make.job(webhook_url="http://x/", priority=-1), make.job()
    died = []
    for _ in range(3):
        assert died == []
        assert claim(store).job_id == poison.id
        clock.advance(LEASE_S)
        died = store.jobs.reap(max_crashes=3).dead
    assert [job.id for job in died] == [poison.id]
    dead = store.jobs.get(poison.id)
    assert (dead.status, dead.crashes, dead.attempt) == ("dead", 3, 3)
    assert (dead.error.code, dead.error.message) == ("worker_lost", "worker lost 3 times")
    assert {a.outcome for a in store.jobs.attempts(poison.id)} == {AttemptOutcome.LOST}
    (event,) = store.webhooks.of_job(poison.id)
    assert json.loads(event.body)["data"]["status"] == "dead"
    assert claim(store).job_id == innocent.id


def test_a_lost_worker_of_a_cancelled_job_ends_it(store, make, clock):
    job = make.job()
    claim(store)
    store.jobs.request_cancel(job.id, None)
    clock.advance(LEASE_S)
    assert [j.id for j in store.jobs.reap(max_crashes=3).cancelled] == [job.id]
    assert claim(store) is None


def test_a_claim_takes_over_a_lost_job_and_counts_the_crash(store, make, clock):
    job = make.job()
    first = claim(store, "w1")
    assert claim(store, "w2") is None
    clock.advance(LEASE_S)
    second = claim(store, "w2")
    assert (second.job_id, second.attempt) == (job.id, 2)
    assert store.jobs.get(job.id).crashes == 1
    assert not store.jobs.heartbeat(first, LEASE_S, None).held
    outcomes = [(a.worker, a.outcome) for a in store.jobs.attempts(job.id)]
    assert outcomes == [("w1", AttemptOutcome.LOST), ("w2", None)]


def test_takeovers_cannot_outrun_the_bound_on_crashes(store, make, clock):
    job = make.job()
    starts = 0
    while claim(store, max_crashes=3) is not None:
        starts += 1
        clock.advance(LEASE_S)
    assert starts == 3
    assert [j.id for j in store.jobs.reap(max_crashes=3).dead] == [job.id]


def test_a_late_beat_revives_a_lease_that_nobody_took(store, make, clock):
    make.job()
    got = claim(store)
    clock.advance(LEASE_S * 2)
    assert store.jobs.heartbeat(got, LEASE_S, None).held
    assert store.jobs.reap(max_crashes=3).requeued == []


def _progress(percent):
    return JobProgress(stage="denoise", step=int(percent), steps=100, percent=percent)
