"""Nothing is lost and nothing is doubled, whatever gets killed."""

import os
import signal
import stat
import subprocess
import sys

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Enough work that a signal meets the job in the middle.
LONG = {"seconds": "6", "size": "640x480", "steps": "40"}


def wait_until_running(service, client, job_id):
    from time import monotonic, sleep

    deadline = monotonic() + 60
    while monotonic() < deadline:
        job = client.get(f"/jobs/{job_id}").json()
        if job["status"] == "running" and job["progress"] and job["progress"]["percent"] > 0:
            return
        assert job["status"] in {"queued", "running"}, job
        sleep(0.05)
    pytest.fail(f"job {job_id} did not start")


def assert_one_result(job, attempt):
    assert job["status"] == "succeeded", job
    assert job["attempt"] == attempt
    names = [a["name"] for a in job["artifacts"]]
    assert len(names) == len(set(names))
    assert any(name.endswith(".mp4") for name in names)


def test_a_killed_video_worker_loses_nothing(own_service):
    service = own_service("--model", "none")
    with service.client() as client:
        job = service.submit(client, **LONG)
        wait_until_running(service, client, job["id"])
        service.child("workers", "video").send_signal(signal.SIGKILL)
        assert_one_result(service.wait_for(client, job["id"]), attempt=2)
        after = service.submit(client)
        assert_one_result(service.wait_for(client, after["id"]), attempt=1)


def test_killed_gateway_and_redis_lose_no_job(own_service):
    service = own_service("--model", "none")
    with service.client() as client:
        jobs = [service.submit(client, seed=seed)["id"] for seed in range(8)]
        service.child("redis-server").send_signal(signal.SIGKILL)
        service.child("-m service").send_signal(signal.SIGKILL)
        for job_id in jobs:
            assert_one_result(service.wait_for(client, job_id), attempt=1)
        listed = client.get("/jobs", params={"limit": 100}).json()
        assert len(listed["data"]) == len(jobs)


def test_a_killed_tree_loses_none_of_twenty_jobs(own_service, tmp_path):
    data_dir = tmp_path / "data"
    service = own_service("--model", "none", data_dir=data_dir)
    with service.client() as client:
        jobs = [service.submit(client, seed=seed)["id"] for seed in range(20)]
    service.kill_tree()
    again = own_service("--model", "none", data_dir=data_dir)
    with again.client() as client:
        for job_id in jobs:
            job = again.wait_for(client, job_id)
            assert_one_result(job, attempt=job["attempt"])
            assert job["attempt"] <= 2
        assert len(client.get("/jobs", params={"limit": 100}).json()["data"]) == len(jobs)


def test_sigterm_ends_the_whole_tree_and_a_second_start_is_refused(own_service):
    service = own_service("--model", "none")
    command = [sys.executable, "-m", "service.cli", "serve", "--data", str(service.data_dir)]
    second = subprocess.run(
        [*command, "--port", "0", "--model", "none"], capture_output=True, text=True, timeout=60
    )
    assert second.returncode != 0
    assert str(service.data_dir) in second.stdout + second.stderr
    key_file = service.data_dir / "first-key.txt"
    assert stat.S_IMODE(os.stat(key_file).st_mode) == 0o600
    tree = service.tree()
    assert service.stop() == 0
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert alive == []


def test_a_public_address_without_a_key_is_refused(tmp_path):
    command = [sys.executable, "-m", "service.cli", "serve", "--data", str(tmp_path / "fresh")]
    finished = subprocess.run(
        [*command, "--host", "0.0.0.0", "--port", "0", "--model", "none"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode != 0
    assert "lanewise keys create" in finished.stdout + finished.stderr


def test_overlapping_device_sets_are_refused(tmp_path):
    command = [sys.executable, "-m", "service.cli", "serve", "--data", str(tmp_path / "fresh")]
    finished = subprocess.run(
        [*command, "--llm-devices", "0-3", "--video-devices", "3-7", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 2
    assert "3" in finished.stdout + finished.stderr
