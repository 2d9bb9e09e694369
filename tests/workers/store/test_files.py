"""Uploads."""

import hashlib

import pytest

from workers.errors import FileInUse, FileNotFound, InvalidText
from workers.protocol import JobLabels


def put(store, content=b"bytes", key_id="key_a", name="x.png", purpose="vision"):
    return store.files.put(
        content,
        name=name,
        media_type="image/png",
        key_id=key_id,
        purpose=purpose,
        width=3,
        height=2,
    )


def test_a_file_comes_back_as_it_was(store, clock):
    name = '../../报告 "🚀"\u202e.png'
    stored = put(store, b"\0\xff" * 1000, name=name)
    assert store.files.get(stored.id, key_id="key_a") == stored
    assert (stored.name, stored.bytes, stored.width, stored.height) == (name, 2000, 3, 2)
    assert stored.path == "files/" + hashlib.sha256(b"\0\xff" * 1000).hexdigest()
    assert stored.created_at == clock.now
    with store.files.open(stored.id, key_id="key_a") as reader:
        assert reader.read() == b"\0\xff" * 1000


def test_the_same_bytes_are_one_file_per_key_and_purpose(store):
    first = put(store)
    assert put(store, name="other.png") == first
    others = [put(store, key_id="key_b"), put(store, purpose="batch"), put(store, b"other")]
    assert len({first.id, *(other.id for other in others)}) == 4
    assert others[0].path == first.path


def test_files_of_another_key_are_not_found(store):
    stored = put(store, key_id="key_a")
    for call in (store.files.get, store.files.open, store.files.delete):
        with pytest.raises(FileNotFound):
            call(stored.id, key_id="key_b")
    assert store.files.get(stored.id) == stored


def test_bytes_go_with_the_last_file_that_has_them(store):
    first, second = put(store, key_id="key_a"), put(store, key_id="key_b")
    store.files.delete(first.id)
    assert store.artifacts.exists(second.path)
    store.files.delete(second.id)
    assert not store.artifacts.exists(second.path)
    with pytest.raises(FileNotFound):
        store.files.get(first.id)


def test_a_file_stays_while_a_job_that_has_not_ended_needs_it(store, make):
    stored = put(store)
    asked = make.request().model_copy(update={"image": stored.id})
    job = store.jobs.create(asked, JobLabels(), key_id="key_a", max_queued=9).job
    with pytest.raises(FileInUse, match=job.id):
        store.files.delete(stored.id, key_id="key_a")
    assert store.artifacts.exists(stored.path)
    store.jobs.request_cancel(job.id, None)
    store.files.delete(stored.id, key_id="key_a")
    assert not store.artifacts.exists(stored.path)


def test_lost_bytes_are_restored_by_the_next_upload(store):
    stored = put(store)
    store.artifacts.delete([stored.path])
    assert put(store) == stored
    assert store.artifacts.size(stored.path) == 5


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_join_to_the_whole(store, order):
    made = [put(store, bytes([n])).id for n in range(7)]
    put(store, key_id="key_b")
    put(store, b"batch", purpose="batch")
    seen, has_more = [], True
    while has_more:
        after = seen[-1] if seen else None
        page = store.files.list(key_id="key_a", purpose="vision", after=after, limit=3, order=order)
        seen += [file.id for file in page.files]
        has_more = page.has_more
    assert seen == sorted(made, reverse=order == "desc")


def test_hostile_texts(store):
    with pytest.raises(InvalidText):
        put(store, name="a\0.png")
    with pytest.raises(FileNotFound):
        store.files.get("\0")
    assert store.files.list(after="\0").files == []
