"""Many at once, in threads and in processes."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Barrier

import pytest

import workers
from workers.errors import QueueFull
from workers.protocol import JobError, JobLabels
from workers.store import open_store
from workers.store.jobs import Failed, Idempotency, Succeeded

ROOT = Path(workers.__file__).parents[1]
NUM = 20

CLAIM_ALL = """
import json, sys
from workers.store import open_store
with open_store(sys.argv[1], sys.argv[2]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    taken = []
    while (claim := store.jobs.claim("motion", sys.argv[3], 30.0)) is not None:
        taken.append(claim.job_id)
print(json.dumps(taken))
"""
CREATE = """
import json, sys
from workers.protocol import JobLabels, VideoJobRequest
from workers.store import open_store
from workers.store.jobs import Idempotency
request = VideoJobRequest.model_validate_json(sys.argv[3])
with open_store(sys.argv[1], sys.argv[2]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    made = [
        store.jobs.create(
            request, JobLabels(), key_id="key_a", max_queued=99,
            idempotency=Idempotency(f"key {n}", "body"),
        ).job.id
        for n in range(5)
    ]
print(json.dumps(made))
"""


def at_once(call, num=NUM):
    """Results of `call(0)` … `call(num - 1)`, all begun at the same moment."""
    barrier = Barrier(num)

    def wait_and_call(number):
        barrier.wait()
        return call(number)

    with ThreadPoolExecutor(num) as pool:
        return list(pool.map(wait_and_call, range(num)))


def in_processes(script, num, *args):
    """What `num` processes print that begin together, parsed."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, *args],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(num)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=200)[0] for process in running]
    assert [process.returncode for process in running] == [0] * num
    return [json.loads(output) for output in outputs]


def test_twenty_claimers_get_twenty_jobs_once_each(store, make):
    made = {make.job().id for _ in range(NUM)}
    claims = at_once(lambda n: store.jobs.claim("motion", f"w{n}", 30))
    assert {claim.job_id for claim in claims} == made
    assert {claim.attempt for claim in claims} == {1}
    assert store.jobs.claim("motion", "late", 30) is None


def test_processes_share_the_jobs_without_overlap(store, make, database_url, tmp_path):
    made = {make.job().id for _ in range(60)}
    taken = in_processes(CLAIM_ALL, 3, database_url, str(tmp_path / "artifacts"), "w")
    assert sorted(chain.from_iterable(taken)) == sorted(made)


def test_twenty_creators_with_one_key_make_one_job(store, make):
    key = Idempotency("k", "body")
    created = at_once(
        lambda _: store.jobs.create(
            make.request(), JobLabels(), key_id="key_a", max_queued=99, idempotency=key
        )
    )
    assert len({one.job.id for one in created}) == 1
    assert [one.replayed for one in created].count(False) == 1
    assert sum(store.jobs.counts().values()) == 1


def test_creators_in_processes_with_the_same_keys_make_one_job_each(
    store, make, database_url, tmp_path
):
    request = make.request().model_dump_json()
    made = in_processes(CREATE, 3, database_url, str(tmp_path / "artifacts"), request)
    assert made[0] == made[1] == made[2]
    assert len(set(made[0])) == sum(store.jobs.counts().values()) == 5


def test_the_bound_holds_against_a_crowd(store, make):
    def create(_):
        try:
            store.jobs.create(make.request(), JobLabels(), key_id="key_a", max_queued=7)
        except QueueFull:
            return "full"
        return "made"

    results = at_once(create)
    assert (results.count("made"), results.count("full")) == (7, 13)


def test_one_result_is_accepted_when_all_finish_at_once(store, make):
    job = make.job(webhook_url="http://x/")
    claim = store.jobs.claim("motion", "w", 30)
    outcomes = [Succeeded([make.artifact()]), Failed(JobError(code="c", message="m"))]
    accepted = at_once(lambda n: store.jobs.finish(claim, outcomes[n % 2]))
    assert accepted.count(True) == 1
    winner = "succeeded" if accepted.index(True) % 2 == 0 else "failed"
    assert store.jobs.get(job.id).status == winner
    assert [e.event_type for e in store.webhooks.of_job(job.id)] == [f"job.{winner}"]


def test_reapers_count_a_crash_once(store, make, clock):
    job = make.job()
    store.jobs.claim("motion", "w", 30)
    clock.advance(30)
    reaped = at_once(lambda _: store.jobs.reap(max_crashes=3), num=8)
    assert sum(len(one.requeued) for one in reaped) == 1
    assert store.jobs.get(job.id).crashes == 1


@pytest.mark.parametrize("verb", ["request_cancel", "delete"])
def test_a_cancel_or_delete_against_a_finish_has_one_winner(store, make, verb):
    for _ in range(5):
        job = make.job(webhook_url="http://x/")
        claim = store.jobs.claim("motion", "w", 30)
        calls = [
            lambda claim=claim: store.jobs.finish(claim, Succeeded([])),
            lambda job=job: getattr(store.jobs, verb)(job.id, None),
        ]
        finished, _ = at_once(lambda n, calls=calls: calls[n](), num=2)
        events = [e.event_type for e in store.webhooks.of_job(job.id)]
        assert events == (["job.succeeded"] if finished else ["job.cancelled"])


def test_senders_never_share_an_event(store, make):
    for _ in range(NUM):
        store.jobs.request_cancel(make.job(webhook_url="http://x/").id, None)
    taken = at_once(lambda _: store.webhooks.due(5), num=8)
    ids = [event.id for events in taken for event in events]
    assert len(ids) == len(set(ids)) == NUM


def test_uploads_and_deletes_of_the_same_bytes_never_lose_them(store):
    def upload_and_delete(number):
        for _ in range(4):
            stored = store.files.put(
                b"same", name="x", media_type="image/png", key_id=f"k{number}", purpose="vision"
            )
            with store.files.open(stored.id) as reader:
                assert reader.read() == b"same"
            store.files.delete(stored.id)

    at_once(upload_and_delete, num=4)
    assert store.files.list().files == []


def test_many_processes_worth_of_threads_wait_instead_of_failing(store, database_url, tmp_path):
    with open_store(database_url, str(tmp_path / "artifacts")) as second:
        stores = [store, second]
        at_once(lambda n: [stores[n % 2].keys.create(f"{n}", []) for _ in range(3)])
    assert store.keys.count_active() == NUM * 3
