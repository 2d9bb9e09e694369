"""The state machine against a model of it in plain Python: random walks over all verbs."""

from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from workers.errors import JobNotFound, JobNotRetryable
from workers.protocol import JobError, JobStatus
from workers.store.job_states import move
from workers.store.jobs import AttemptOutcome, Cancelled, Claim, Failed, Succeeded

LEASE_S = 10
MAX_CRASHES = 3
OUTCOMES = {
    "succeeded": Succeeded(()),
    "failed": Failed(JobError(code="c", message="m")),
    "cancelled": Cancelled(),
}
pick = st.integers(0, 10_000)


class Model:
    """One job as it ought to be."""

    def __init__(self, priority):
        self.priority = priority
        self.status = "queued"
        self.attempt = self.crashes = 0
        self.lease_until = None
        self.events = []
        self.outcomes = []

    @property
    def is_held(self):
        return self.status in {"running", "cancelling"}

    def end(self, status):
        self.status, self.lease_until = status, None
        self.events.append(f"job.{status}")

    def lost(self):
        self.outcomes[-1] = "lost"
        self.crashes += 1
        if self.status == "cancelling":
            self.end("cancelled")
        elif self.crashes >= MAX_CRASHES:
            self.end("dead")
        else:
            self.status, self.lease_until = "queued", None

    def start(self, lease_until):
        self.status, self.lease_until = "running", lease_until
        self.attempt += 1
        self.outcomes.append(None)


class Walk(RuleBasedStateMachine):
    """Does the same to the store and to the model, and compares."""

    def __init__(self, store, make, clock, wipe):
        super().__init__()
        wipe()
        self.store, self.make, self.clock = store, make, clock
        self.jobs, self.claims, self.deleted_events = {}, [], {}

    @rule(priority=st.integers(-1, 1))
    def create(self, priority):
        job = self.make.job(priority=priority, webhook_url="http://x/")
        self.jobs[job.id] = Model(priority)

    @rule(seconds=st.sampled_from([1, 6, LEASE_S]))
    def advance(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def claim(self):
        got = self.store.jobs.claim("motion", "w", LEASE_S, max_crashes=MAX_CRASHES)
        wanted = self._next_queued() or self._next_lost()
        assert (got and got.job_id) == wanted
        if got is not None:
            job = self.jobs[wanted]
            if job.status == "running":
                job.outcomes[-1] = "lost"
                job.crashes += 1
            job.start(self._now() + LEASE_S)
            assert got.attempt == job.attempt
            self.claims.append(got)

    @precondition(lambda self: self.claims)
    @rule(which=pick)
    def beat(self, which):
        claim, job = self._claim(which)
        beat = self.store.jobs.heartbeat(claim, LEASE_S, None)
        assert beat.held == (job is not None)
        if job is not None:
            assert beat.cancel_requested == (job.status == "cancelling")
            job.lease_until = self._now() + LEASE_S

    @precondition(lambda self: self.claims)
    @rule(which=pick, outcome=st.sampled_from(sorted(OUTCOMES)))
    def finish(self, which, outcome):
        claim, job = self._claim(which)
        assert self.store.jobs.finish(claim, OUTCOMES[outcome]) == (job is not None)
        if job is not None:
            job.end(outcome)
            job.outcomes[-1] = outcome

    @precondition(lambda self: self.claims)
    @rule(which=pick)
    def release(self, which):
        claim, job = self._claim(which)
        assert self.store.jobs.release(claim) == (job is not None)
        if job is not None and job.status == "cancelling":
            job.end("cancelled")
            job.outcomes[-1] = "cancelled"
        elif job is not None:
            job.status, job.lease_until = "queued", None
            job.outcomes[-1] = "released"

    @rule()
    def reap(self):
        reaped = self.store.jobs.reap(max_crashes=MAX_CRASHES)
        over = [i for i, j in self.jobs.items() if j.is_held and j.lease_until <= self._now()]
        for job_id in over:
            self.jobs[job_id].lost()
        got = {
            "queued": reaped.requeued,
            "dead": reaped.dead,
            "cancelled": reaped.cancelled,
        }
        for status, jobs in got.items():
            assert [j.id for j in jobs] == [i for i in over if self.jobs[i].status == status]

    @precondition(lambda self: self.jobs)
    @rule(which=pick)
    def cancel(self, which):
        job_id, job = self._job(which)
        after = self.store.jobs.request_cancel(job_id, "key_a")
        if job.status == "queued":
            job.end("cancelled")
        elif job.status == "running":
            job.status = "cancelling"
        assert after.status == job.status

    @precondition(lambda self: self.jobs)
    @rule(which=pick)
    def retry(self, which):
        job_id, job = self._job(which)
        if job.status in {"failed", "cancelled", "dead"}:
            self.store.jobs.retry(job_id, "key_a")
            job.status, job.crashes = "queued", 0
        else:
            with pytest.raises(JobNotRetryable):
                self.store.jobs.retry(job_id, "key_a")

    @precondition(lambda self: self.jobs)
    @rule(which=pick)
    def delete(self, which):
        job_id, job = self._job(which)
        self.store.jobs.delete(job_id, "key_a")
        if job.status in {"queued", "running", "cancelling"}:
            job.end("cancelled")
        self.deleted_events[job_id] = job.events
        del self.jobs[job_id]
        with pytest.raises(JobNotFound):
            self.store.jobs.get(job_id)

    @invariant()
    def rows_are_as_the_model_says(self):
        page = self.store.jobs.list(order="asc", limit=1000)
        shown = [(j.id, j.status, j.attempt, j.crashes) for j in page.jobs]
        wanted = [(i, j.status, j.attempt, j.crashes) for i, j in self.jobs.items()]
        assert shown == wanted
        queued = sorted(
            (j for j in page.jobs if j.queue_position is not None),
            key=lambda j: j.queue_position,
        )
        assert [j.id for j in queued] == self._queue()
        assert [j.queue_position for j in queued] == list(range(len(queued)))

    def teardown(self):
        for job_id, job in self.jobs.items():
            runs = self.store.jobs.attempts(job_id)
            assert [run.attempt for run in runs] == list(range(1, job.attempt + 1))
            assert [run.outcome for run in runs] == job.outcomes
        every = self.deleted_events | {i: j.events for i, j in self.jobs.items()}
        for job_id, events in every.items():
            assert [e.event_type for e in self.store.webhooks.of_job(job_id)] == events

    def _now(self):
        return self.clock.now.timestamp()

    def _queue(self):
        waiting = [i for i, job in self.jobs.items() if job.status == "queued"]
        return sorted(waiting, key=lambda i: (self.jobs[i].priority, i))

    def _next_queued(self):
        return next(iter(self._queue()), None)

    def _next_lost(self):
        lost = [
            i
            for i, job in self.jobs.items()
            if job.status == "running"
            and job.lease_until <= self._now()
            and job.crashes + 1 < MAX_CRASHES
        ]
        return min(lost, key=lambda i: (self.jobs[i].priority, i), default=None)

    def _claim(self, which):
        """A claim made at some time, and the job if the claim still holds."""
        claim = self.claims[which % len(self.claims)]
        job = self.jobs.get(claim.job_id)
        holds = job is not None and job.is_held and job.attempt == claim.attempt
        return claim, job if holds else None

    def _job(self, which):
        job_id = list(self.jobs)[which % len(self.jobs)]
        return job_id, self.jobs[job_id]


def test_random_walks_agree_with_the_model(store, make, clock, wipe):
    run_state_machine_as_test(
        cast("Any", lambda: Walk(store, make, clock, wipe)),
        settings=settings(
            max_examples=12,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )


@pytest.mark.parametrize("to", list(JobStatus))
@pytest.mark.parametrize("end", sorted(OUTCOMES))
def test_an_ended_job_moves_nowhere_but_back_into_the_queue(store, make, end, to):
    job = make.job()
    got = store.jobs.claim("motion", "w", LEASE_S)
    store.jobs.finish(got, OUTCOMES[end])
    stale = [got, Claim(job.id, 0, "w", job.request), Claim(job.id, 2, "w", job.request)]
    for claim in stale:
        assert not store.jobs.finish(claim, OUTCOMES["succeeded"])
    ended = store.jobs.get(job.id)
    assert ended.status == end
    if to == JobStatus.QUEUED and end != "succeeded":
        return
    with store.jobs._db.write() as conn, pytest.raises(AssertionError, match="no transition"):
        move(conn, ended, to, ended.changed_at)


def test_every_outcome_of_an_attempt_has_been_seen_above():
    assert {outcome.value for outcome in AttemptOutcome} == set(OUTCOMES) | {"lost", "released"}
