"""The outbox: due, delivered, failed, refused."""

from datetime import timedelta

from workers.protocol import JobStatus


def event(store, make, url="http://x/"):
    job = make.job(webhook_url=url)
    store.jobs.request_cancel(job.id, None)
    (written,) = store.webhooks.of_job(job.id)
    return written


def test_a_taken_event_comes_back_the_same_when_its_sender_dies(store, make, clock):
    written = event(store, make)
    assert [e.id for e in store.webhooks.due(9, lease_s=60)] == [written.id]
    assert store.webhooks.due(9) == []
    clock.advance(60)
    (again,) = store.webhooks.due(9)
    assert (again.id, again.body, again.url) == (written.id, written.body, "http://x/")


def test_a_delivered_event_is_never_due_again(store, make, clock):
    written = event(store, make)
    store.webhooks.delivered(written.id)
    clock.advance(10**6)
    assert store.webhooks.due(9) == []
    (kept,) = store.webhooks.of_job(written.job_id)
    assert (kept.num_tries, kept.last_error) == (1, None)
    assert kept.delivered_at == clock.now - timedelta(seconds=10**6)


def test_a_failed_try_waits_and_the_last_one_gives_up(store, make, clock):
    written = event(store, make)
    store.webhooks.failed(written.id, "500 \0", clock.now + timedelta(seconds=5))
    clock.advance(4)
    assert store.webhooks.due(9) == []
    clock.advance(1)
    (again,) = store.webhooks.due(9)
    assert (again.num_tries, again.last_error) == (1, "500 \N{REPLACEMENT CHARACTER}")
    store.webhooks.failed(written.id, "500", None)
    clock.advance(10**6)
    assert store.webhooks.due(9) == []


def test_a_late_failure_does_not_undo_a_delivery(store, make, clock):
    written = event(store, make)
    store.webhooks.delivered(written.id)
    store.webhooks.failed(written.id, "timed out", clock.now)
    assert store.webhooks.due(9) == []


def test_a_receiver_that_is_gone_gets_nothing_more(store, make):
    for _ in range(2):
        event(store, make, "http://gone/")
    other = event(store, make, "http://here/")
    assert store.webhooks.refused("http://gone/", "410") == 2
    assert [e.id for e in store.webhooks.due(9)] == [other.id]


def test_due_events_come_oldest_first_and_no_more_than_asked(store, make, clock):
    written = []
    for _ in range(3):
        written.append(event(store, make).id)
        clock.advance(1)
    assert [e.id for e in store.webhooks.due(2)] == written[:2]
    assert [e.id for e in store.webhooks.due(2)] == written[2:]


def test_events_survive_the_job(store, make):
    written = event(store, make)
    store.jobs.delete(written.job_id, None)
    assert [e.id for e in store.webhooks.due(9)] == [written.id]
    assert JobStatus.CANCELLED in written.event_type
