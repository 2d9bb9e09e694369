"""Ids: sortable, unique, and recognisable."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from workers.store.ids import IdSource, looks_like_id

START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.integers(-5000, 5000), min_size=2, max_size=30))
def test_ids_grow_whatever_the_clock_does(steps_ms):
    now = [START]
    source = IdSource(lambda: now[0])
    made = []
    for step_ms in steps_ms:
        now[0] += timedelta(milliseconds=step_ms)
        made.append(source.make("job_"))
    assert made == sorted(set(made))


def test_ids_of_two_sources_sort_by_time():
    early = IdSource(lambda: START)
    late = IdSource(lambda: START + timedelta(milliseconds=1))
    assert early.make("job_") < late.make("job_")


def test_ids_made_by_threads_differ():
    source = IdSource(lambda: START)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: source.make("job_"), range(2000)))
    assert len(set(made)) == 2000


def test_what_could_be_an_id():
    made = IdSource(lambda: START).make("file-")
    assert looks_like_id(made)
    hostile = ["", "job_", made + "\n", made[:-1], made + "0", "job_" + "\0" * 26, "../" + made]
    assert not any(map(looks_like_id, hostile))
