"""Batches of shots."""

import pytest

from workers.errors import BatchNotFound, InvalidText
from workers.protocol import JobStatus
from workers.store.batches import Shot
from workers.store.jobs import Succeeded


def batch_of(store, make, fingerprints, *, name="film", key_id="key_a"):
    shots = [Shot(row, text, make.job(key_id=key_id).id) for row, text in enumerate(fingerprints)]
    return store.batches.create(name=name, key_id=key_id, shots=shots)


def test_a_batch_shows_its_jobs_as_they_are_now(store, make, clock):
    made = batch_of(store, make, ["a", "b", "c"])
    store.jobs.finish(store.jobs.claim("motion", "w", 30), Succeeded([make.artifact()]))
    store.jobs.claim("motion", "w", 30)
    batch = store.batches.get(made.id, key_id="key_a")
    assert batch.counts == {JobStatus.SUCCEEDED: 1, JobStatus.RUNNING: 1, JobStatus.QUEUED: 1}
    assert [(s.row, s.fingerprint, s.job.id) for s in batch.shots] == [
        (s.row, s.fingerprint, s.job_id) for s in made.shots
    ]
    assert batch.shots[0].job.artifacts == (make.artifact(),)
    assert (batch.name, batch.created_at) == ("film", clock.now)


def test_deleted_jobs_leave_their_shot_without_one(store, make):
    made = batch_of(store, make, ["a", "b", "c"])
    store.jobs.claim("motion", "w", 30)
    for shot in made.shots[:2]:
        store.jobs.delete(shot.job_id, None)
    batch = store.batches.get(made.id)
    assert [shot.job is None for shot in batch.shots] == [True, True, False]
    (summary,) = store.batches.list()
    assert summary.num_shots == 3
    assert batch.counts == summary.counts == {JobStatus.QUEUED: 1}


def test_shots_are_found_again_by_what_they_depend_on(store, make):
    first = batch_of(store, make, ["a", "b"])
    batch_of(store, make, ["a"], name="other film")
    batch_of(store, make, ["a"], key_id="key_b")
    second = batch_of(store, make, ["b", "c"])
    found = store.batches.find_shots(key_id="key_a", name="film", fingerprints={"a", "b", "x"})
    assert {text: job.id for text, job in found.items()} == {
        "a": first.shots[0].job_id,
        "b": second.shots[0].job_id,
    }
    store.jobs.delete(first.shots[0].job_id, None)
    assert store.batches.find_shots(key_id="key_a", name="film", fingerprints={"a"}) == {}


def test_a_later_batch_may_share_jobs(store, make):
    first = batch_of(store, make, ["a"])
    shots = [Shot(5, "a", first.shots[0].job_id)]
    batch_id = store.batches.make_id()
    second = store.batches.create(name="film", key_id="key_a", shots=shots, batch_id=batch_id)
    assert (second.id, second.shots[0].job) == (batch_id, first.shots[0].job)


def test_lists_are_newest_first_and_of_one_key(store, make):
    made = [batch_of(store, make, []).id for _ in range(5)]
    batch_of(store, make, [], key_id="key_b")
    first = store.batches.list(key_id="key_a", limit=3)
    rest = store.batches.list(key_id="key_a", limit=3, after=first[-1].id)
    assert [batch.id for batch in [*first, *rest]] == made[::-1]


def test_batches_of_another_key_are_not_found(store, make):
    made = batch_of(store, make, ["a"])
    for batch_id, key_id in [(made.id, "key_b"), ("batch_unknown", None), ("\0", None)]:
        with pytest.raises(BatchNotFound):
            store.batches.get(batch_id, key_id=key_id)


def test_names_must_be_storable(store):
    with pytest.raises(InvalidText):
        store.batches.create(name="\0", key_id="key_a", shots=[])
    assert store.batches.find_shots(key_id="key_a", name="\0", fingerprints={"a"}) == {}
