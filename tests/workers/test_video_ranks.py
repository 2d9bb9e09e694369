"""`lanewise serve` with a video layout: a job over HTTP is computed by two ranks, and survives."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LAYOUT = "ulysses2"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from tests.conftest import Service, ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANEWISE_VIDEO_LAYOUT", LAYOUT)
        service = Service(tmp_path_factory.mktemp("video") / "data", ("--model", "none")).start()
    yield service
    ended(service)


def frames(client, job):
    """What identifies the clip's pixels."""
    return {
        a["name"]: a["sha256"] for a in job["artifacts"] if a["name"].endswith((".png", ".mp4"))
    }


def test_a_job_is_computed_by_two_ranks_and_the_plan_says_how(served):
    with served.client() as client:
        follower = served.child("workers.ranks", "video")
        before_s = sum(follower.cpu_times()[:2])
        job = served.wait_for(client, served.submit(client, steps=20)["id"])
        assert job["status"] == "succeeded", job
        assert sum(follower.cpu_times()[:2]) > before_s  # it did take part
        (plan,) = client.get("/v1/engine/plan").json()["data"]
        found = {d["what"]: d for d in plan["decisions"]}
        assert found["layout"]["chosen"] == LAYOUT
        assert found["exchange of attention"]["reasons"]
        assert found["wire of heads"]["chosen"] == "exact"
        (row,) = client.get("/v1/engine/stats").json()["data"]
        assert row["stats"]["ranks"]["size"] == 2


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_a_job_outlives_its_follower(served, number):
    with served.client() as client:
        first = served.wait_for(client, served.submit(client, steps=30, seed=3)["id"])
        victim = served.child("workers.ranks", "video")
        again = served.submit(client, steps=30, seed=3)
        wait(lambda: client.get(f"/jobs/{again['id']}").json()["status"] != "queued")
        victim.send_signal(number)
        job = served.wait_for(client, again["id"])
        assert job["status"] == "succeeded", job
        assert frames(client, job) == frames(client, first)
        wait(lambda: str(victim.pid) in (stats(client).get("rank_last_verdict") or ""))
        assert stats(client)["ranks"]["restarts_total"] >= 1


def test_a_killed_leader_takes_its_rank_along_and_the_job_is_done_by_the_next(served):
    with served.client() as client:
        follower = served.child("workers.ranks", "video")
        leader = psutil.Process(follower.ppid())
        job = served.submit(client, steps=50, seconds=2)
        wait(lambda: client.get(f"/jobs/{job['id']}").json()["status"] != "queued")
        os.kill(leader.pid, signal.SIGKILL)
        psutil.wait_procs([follower], timeout=10)
        assert not follower.is_running()
        assert served.wait_for(client, job["id"])["status"] == "succeeded"


def stats(client):
    (row,) = client.get("/v1/engine/stats").json()["data"]
    return row["stats"]


def wait(is_so, timeout_s=90.0):
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
