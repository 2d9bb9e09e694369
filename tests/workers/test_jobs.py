"""Video jobs through Redis, Celery and a worker process with a scripted engine."""

from __future__ import annotations

import hashlib
import signal

import pytest

from workers.app import make_app, send
from workers.client import BatchItem
from workers.protocol import Artifact, JobLabels
from workers.store.values import Succeeded

_LABELS = JobLabels()


@pytest.fixture(scope="module")
def served(place_of_module):
    """A place with one worker, for tests that leave it as it was."""
    place_of_module.worker()
    return place_of_module


def test_a_job_runs_and_its_file_is_served(served):
    job = served.finished(served.submit("a"))
    assert job.status == "succeeded"
    assert job.attempt == 1
    (artifact,) = job.artifacts
    assert artifact.path == f"jobs/{job.id}/1/motion.mp4"
    content = served.client.artifacts.open(artifact.path).read()
    assert content == b'{"name": "a"}'
    assert artifact.sha256 == hashlib.sha256(content).hexdigest()
    assert list((served.folder / "scratch").iterdir()) == []


@pytest.mark.slow
def test_k1_a_message_delivered_twice_starts_one_run(place):
    place.worker()
    place.worker()
    job = place.submit("long", steps=40, step_s=0.1)
    app = make_app(place.settings, place.redis.url)
    for _ in range(4):
        send(app, "video", "scripted-video", job.id)
    keeper = place.keep_house()
    assert place.finished(job).status == "succeeded"
    keeper.reap()
    assert place.runs("start long") == 1
    assert [a.attempt for a in place.client.store.jobs.attempts(job.id)] == [1]


@pytest.mark.slow
def test_k2_a_job_that_kills_its_worker_is_dead_after_three_and_the_next_runs(place):
    place.keep_house()
    killer = place.submit("killer", do="kill")
    after = place.submit("after")
    for _ in range(3):
        process = place.worker(wait=False)
        place.wait_for("the worker is gone", lambda p=process: p.poll() is not None)
        place.wait_for("the job is taken away", lambda: place.status(killer) != "running")
    place.worker()
    assert place.finished(after).status == "succeeded"
    killer = place.finished(killer)
    assert killer.status == "dead"
    assert killer.error is not None
    assert killer.error.message == "worker lost 3 times"
    assert place.runs("start killer") == 3


def test_k4_the_second_job_waits_in_the_queue(place):
    place.worker()
    first = place.submit("first", steps=20, step_s=0.1)
    second, third = place.submit("second"), place.submit("third")
    place.wait_for("the first runs", lambda: place.status(first) == "running")
    waiting = place.job(third)
    assert waiting.status == "queued"
    assert waiting.started_at is None
    assert waiting.queue_position == 1
    assert place.job(second).queue_position == 0
    assert place.finished(third).status == "succeeded"
    assert place.lines()[::2] == ["start first", "start second", "start third"]


def test_k5_an_engine_that_needs_no_time(served):
    jobs = [served.submit(f"j{n}", steps=1, step_s=0.0) for n in range(5)]
    assert {served.finished(job).status for job in jobs} == {"succeeded"}


@pytest.mark.slow
def test_k6_jobs_survive_a_redis_that_lost_everything(place):
    place.worker()
    done = place.finished(place.submit("done"))
    running = place.submit("running", steps=30, step_s=0.1)
    place.wait_for("it runs", lambda: place.status(running) == "running")
    queued = [place.submit(f"q{n}") for n in range(3)]
    place.redis.kill()
    place.redis.wipe()
    place.redis.start()
    place.keep_house()
    assert place.job(done).artifacts
    assert {place.finished(job).status for job in (running, *queued)} == {"succeeded"}


def test_k7_a_job_cancelled_without_a_worker_never_runs(place):
    job, other = place.submit("unwanted"), place.submit("wanted")
    assert place.client.cancel(job.id, None).status == "cancelled"
    place.worker()
    assert place.finished(other).status == "succeeded"
    assert place.runs("start unwanted") == 0


@pytest.mark.slow
def test_k8_an_idle_worker_finds_a_redis_that_was_restarted(place):
    process = place.worker()
    place.redis.kill()
    place.redis.start()
    job = place.submit("late")
    assert place.finished(job, 20).status == "succeeded"
    assert process.poll() is None


def test_a_submit_without_redis_is_queued_and_sent_later(place):
    place.redis.kill()
    job = place.submit("patient")
    assert job.status == "queued"
    place.redis.start()
    place.worker()
    place.keep_house()
    assert place.finished(job).status == "succeeded"


def test_a_running_job_is_cancelled_at_the_next_step(served):
    job = served.submit("long", steps=600, step_s=0.1)
    served.wait_for("it runs", lambda: served.job(job).progress is not None)
    assert served.client.cancel(job.id, None).status == "cancelling"
    assert served.finished(job).status == "cancelled"
    assert served.runs("stop long") == 1
    assert served.finished(served.submit("next")).status == "succeeded"


def test_a_running_job_is_deleted_and_leaves_no_file(served):
    job = served.submit("doomed", steps=600, step_s=0.1)
    served.wait_for("it runs", lambda: served.status(job) == "running")
    served.client.delete(job.id, None)
    served.wait_for("it stops", lambda: served.runs("stop doomed") == 1)
    assert served.finished(served.submit("next")).status == "succeeded"
    assert not (served.folder / "artifacts" / "jobs" / job.id).exists()


def test_progress_has_steps_percent_and_the_time_left(served):
    job = served.submit("slow", steps=20, step_s=0.15)
    served.wait_for("time left is known", lambda: _eta(served.job(job)) is not None)
    progress = served.job(job).progress
    assert progress.stage == "denoise"
    assert progress.steps == 20
    assert 0 < progress.percent < 100
    assert 0 < progress.eta_seconds < 60


def _eta(job):
    return job.progress and job.progress.eta_seconds


@pytest.mark.slow
def test_a_drained_worker_gives_its_job_back_and_the_attempt_does_not_count(place):
    process = place.worker()
    job = place.submit("long", steps=30, step_s=0.1)
    place.wait_for("it runs", lambda: place.status(job) == "running")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    given_back = place.job(job)
    assert given_back.status == "queued"
    assert given_back.crashes == 0
    assert place.client.workers() == []
    place.worker()
    done = place.finished(job)
    assert (done.status, done.attempt, done.crashes) == ("succeeded", 2, 0)
    outcomes = [a.outcome for a in place.client.store.jobs.attempts(job.id)]
    assert outcomes == ["released", "succeeded"]


def test_the_outcome_of_a_stale_claim_is_discarded(place):
    jobs = place.client.store.jobs
    job = place.submit("a")
    stale = jobs.claim("scripted-video", "old", 0.0)
    place.wait_for("the job is taken away", lambda: jobs.reap(max_crashes=3).requeued)
    fresh = jobs.claim("scripted-video", "new", 60.0)
    output = Artifact(name="x", media_type="x/y", bytes=1, sha256="0", path="jobs/x/1/x")
    assert not jobs.finish(stale, Succeeded([output]))
    assert jobs.finish(fresh, Succeeded([]))
    assert place.job(job).artifacts == ()


@pytest.mark.parametrize(
    ("do", "code", "message"),
    [
        ("invalid", "invalid_request", "width 3 is below 16"),
        ("memory", "out_of_memory", "no room"),
        ("torch_memory", "out_of_memory", "allocate"),
        ("boom", "engine_error", "ValueError: boom"),
    ],
)
def test_failures_are_told_apart(do, code, message, failures):
    error = failures[do].error
    assert error is not None
    assert error.code == code
    assert message in error.message
    assert "\n" not in error.message


@pytest.fixture(scope="module")
def failures(served):
    place = served
    jobs = {do: place.submit(do, do=do) for do in ("invalid", "memory", "torch_memory", "boom")}
    good = place.submit("good")
    found = {do: place.finished(job) for do, job in jobs.items()}
    assert place.finished(good).status == "succeeded"
    assert {job.status for job in found.values()} == {"failed"}
    return found


def test_a_retried_job_runs_again(served):
    job = served.submit("again", steps=20, step_s=0.1)
    served.client.cancel(job.id, None)
    # The worker may have begun it already, and then stops at its next step.
    assert served.finished(job).status == "cancelled"
    assert served.client.retry(job.id, None).status == "queued"
    assert served.finished(job).status == "succeeded"


def test_a_batch_runs_only_what_changed_or_failed(served):

    def request(name):
        return served.request(name, do="boom" if name == "bad" else "ok")

    def items(*names):
        return [BatchItem(row, name, request(name), _LABELS) for row, name in enumerate(names)]

    first = served.client.submit_batch("film", items("a", "b", "bad"), key_id="key_test")
    assert len(first.fresh) == 3
    for job in first.fresh:
        served.finished(job)
    second = served.client.submit_batch("film", items("a", "c", "bad", "c"), key_id="key_test")
    assert [job.request for job in second.fresh] == [request("c"), request("bad")]
    shots = served.client.store.batches.get(second.batch.id).shots
    assert [shot.fingerprint for shot in shots] == ["a", "c", "bad", "c"]
    assert shots[1].job_id == shots[3].job_id


def test_resending_adds_only_the_missing_messages(place):
    keeper = place.keep_house()
    for n in range(4):
        place.submit(f"j{n}")
    assert place.client.messages("video", "scripted-video") == 4
    keeper.resend(0)
    assert place.client.messages("video", "scripted-video") == 4
    with place.redis_connection() as redis:
        redis.flushall()
    keeper.resend(0)
    assert place.client.messages("video", "scripted-video") == 4
