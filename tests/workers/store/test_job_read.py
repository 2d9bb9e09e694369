"""Lists, positions, counts and changes."""

from datetime import timedelta

import pytest
from sqlalchemy import event

from workers.errors import JobNotFound
from workers.protocol import JobKind, JobLabels, JobStatus
from workers.store.jobs import JobFilters, Succeeded


def ids(jobs):
    return [job.id for job in jobs]


def test_positions_follow_the_claim_order_of_each_model(store, make):
    normal, urgent, other = make.job(), make.job(priority=-1), make.job(model="other")
    assert store.jobs.get(urgent.id).queue_position == 0
    assert store.jobs.get(normal.id).queue_position == 1
    assert store.jobs.get(other.id).queue_position == 0
    listed = {job.id: job.queue_position for job in store.jobs.list().jobs}
    assert listed == {normal.id: 1, urgent.id: 0, other.id: 0}
    store.jobs.claim("motion", "w", 30)
    assert store.jobs.get(normal.id).queue_position == 0


def test_each_filter_lets_through_what_it_says(store, make):
    one = make.job(project="p", tags=("red", "blue"), key_id="key_a", batch_id="b1")
    two = make.job(project="q", tags=("red",), key_id="key_b", model="other")
    store.jobs.request_cancel(two.id, None)
    cases = [
        (JobFilters(), [one, two]),
        (JobFilters(status=JobStatus.CANCELLED), [two]),
        (JobFilters(status=(JobStatus.CANCELLED, JobStatus.QUEUED)), [one, two]),
        (JobFilters(status=()), []),
        (JobFilters(kind=JobKind.IMAGE_TO_VIDEO), [one, two]),
        (JobFilters(project="p"), [one]),
        (JobFilters(tag="red"), [one, two]),
        (JobFilters(tag="blue"), [one]),
        (JobFilters(batch_id="b1"), [one]),
        (JobFilters(model="other"), [two]),
        (JobFilters(key_id="key_b"), [two]),
        (JobFilters(key_id="key_b", tag="blue"), []),
        (JobFilters(project="\0"), []),
    ]
    for filters, wanted in cases:
        assert ids(store.jobs.list(filters, order="asc").jobs) == ids(wanted), filters


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_join_to_the_whole_while_jobs_come_and_go(store, make, order):
    made = [make.job() for _ in range(11)]
    seen, after = [], None
    while True:
        page = store.jobs.list(after=after, limit=3, order=order)
        seen += ids(page.jobs)
        if not page.has_more:
            break
        after = seen[-1]
        store.jobs.delete(after, None)
        if order == "desc":
            make.job()
    assert seen == sorted(ids(made), reverse=order == "desc")


def test_a_full_last_page_says_that_nothing_follows(store, make):
    for _ in range(4):
        make.job()
    assert store.jobs.list(limit=3).has_more
    assert not store.jobs.list(limit=4).has_more
    assert store.jobs.list(after="\0") == store.jobs.list(JobFilters(status=()))


def test_jobs_of_another_key_are_not_found(store, make):
    job = make.job(key_id="key_a")
    calls = [
        lambda: store.jobs.get(job.id, key_id="key_b"),
        lambda: store.jobs.request_cancel(job.id, "key_b"),
        lambda: store.jobs.retry(job.id, "key_b"),
        lambda: store.jobs.delete(job.id, "key_b"),
        lambda: store.jobs.attempts(job.id, key_id="key_b"),
    ]
    for call in calls:
        with pytest.raises(JobNotFound):
            call()
    assert store.jobs.get(job.id, key_id="key_a") == job


@pytest.mark.parametrize("job_id", ["", "\0", "job_\ud800", "' OR 1=1--", "job_" + "0" * 26])
def test_hostile_ids_are_not_found(store, job_id):
    with pytest.raises(JobNotFound):
        store.jobs.get(job_id)


def test_counts_are_by_kind_and_status(store, make):
    for _ in range(3):
        make.job()
    store.jobs.claim("motion", "w", 30)
    kind = JobKind.IMAGE_TO_VIDEO
    assert store.jobs.counts() == {(kind, JobStatus.QUEUED): 2, (kind, JobStatus.RUNNING): 1}


def test_changes_come_in_order_and_ties_are_never_split(store, make, clock):
    start = clock.now - timedelta(seconds=1)
    items = [(make.request(), JobLabels())] * 5
    together = store.jobs.create_many(items, key_id="k", batch_id="b", max_queued=9)
    clock.advance(1)
    later = make.job()
    first = store.jobs.changed_since(start, limit=2)
    assert ids(first) == ids(together)
    assert ids(store.jobs.changed_since(first[-1].changed_at, limit=2)) == [later.id]
    assert store.jobs.changed_since(later.changed_at, limit=2) == []
    clock.advance(1)
    store.jobs.request_cancel(together[0].id, None)
    assert ids(store.jobs.changed_since(later.changed_at, limit=2)) == [together[0].id]


def test_a_page_of_ten_thousand_jobs_needs_few_queries(store, make):
    items = [(make.request(), JobLabels(tags=(f"t{n % 7}",), project="p")) for n in range(10_000)]
    jobs = store.jobs.create_many(items, key_id="key_a", batch_id="b", max_queued=10_000)
    store.jobs.finish(store.jobs.claim("motion", "w", 30), Succeeded([make.artifact()]))
    statements = []
    event.listen(
        store.jobs._db._engine, "before_cursor_execute", lambda *a: statements.append(a[2])
    )
    middle = jobs[5000].id
    pages = [
        store.jobs.list(filters, after=middle, limit=50)
        for filters in (JobFilters(), JobFilters(tag="t3"), JobFilters(key_id="key_a"))
    ]
    assert [len(page.jobs) for page in pages] == [50, 50, 50]
    selects = [text for text in statements if text.lstrip().startswith("SELECT")]
    assert len(selects) == 6  # the rows and their positions; none has artifacts


def test_claims_and_lists_walk_an_index_without_sorting(store, make):
    make.job()
    cases = [
        (lambda: store.jobs.claim("motion", "w", 30), "ix_jobs_claim"),
        (lambda: store.jobs.list(JobFilters(key_id="key_a")), "ix_jobs_key"),
        (lambda: store.jobs.list(JobFilters(status=JobStatus.FAILED)), "ix_jobs_status"),
        (lambda: store.jobs.list(JobFilters(batch_id="b")), "ix_jobs_batch"),
    ]
    for call, index in cases:
        plan = _plan_of_first_select(store, call)
        assert index in plan, plan
        assert "Sort" not in plan, plan
        assert "TEMP B-TREE" not in plan, plan


def _plan_of_first_select(store, call):
    """How the database runs the first query of `call`, when tables are too big to scan."""
    db, seen = store.jobs._db, []

    def remember(conn, cursor, statement, parameters, *_):
        seen.append((statement, parameters))

    event.listen(db._engine, "before_cursor_execute", remember)
    call()
    event.remove(db._engine, "before_cursor_execute", remember)
    statement, parameters = next(s for s in seen if s[0].startswith("SELECT"))
    with db.read() as conn:
        if not db.is_sqlite:
            for method in ("seqscan", "sort", "bitmapscan"):
                conn.exec_driver_sql(f"SET LOCAL enable_{method} = off")
        explain = "EXPLAIN QUERY PLAN " if db.is_sqlite else "EXPLAIN "
        rows = conn.exec_driver_sql(explain + statement, parameters).all()
    return "\n".join(str(row[-1]) for row in rows)
