"""A private Redis, a store, and scripted workers as processes."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image
from redis import Redis

from workers.client import Client
from workers.deployment.redis_server import plan_redis, trouble_with
from workers.housekeeping import Housekeeper
from workers.protocol import Job, JobLabels, VideoJobRequest
from workers.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = Path(__file__).with_name("scripted.py")
KEY = "key_test"
# Generous: the machine may be busy with other work.
PATIENCE_S = 60.0


def wait_for(what: str, is_so: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return when `is_so()` is true; fail with `what` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)


class PrivateRedis:
    """A server of our own making on a unix socket; may be killed, wiped and started again."""

    def __init__(self, data_dir: Path) -> None:
        self.plan = plan_redis(Settings(data_dir=data_dir))
        self.url = self.plan.url
        self._folder = data_dir / "redis"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.plan.command is not None
        self._process = subprocess.Popen(self.plan.command, stdout=subprocess.DEVNULL)
        wait_for("Redis answers", lambda: trouble_with(self.url) is None)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wipe(self) -> None:
        shutil.rmtree(self._folder)
        self._folder.mkdir()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(20)


class Place:
    """A data folder with its Redis, client and workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "run.log"
        self.redis = PrivateRedis(folder)
        self.redis.start()
        self.settings = Settings(
            data_dir=folder,
            redis_url=self.redis.url,
            llm_model="scripted-chat",
            video_model="scripted-video",
            lease_s=2.0,
            beat_s=0.5,
            resend_after_s=2.0,
            webhook_private_hosts=True,
        )
        self.client = Client.connect(self.settings)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._keepers: list[Housekeeper] = []

    def worker(self, role: str = "video", *, wait: bool = True) -> subprocess.Popen[bytes]:
        """Start a scripted worker and wait until it is idle."""
        with (self.folder / f"{role}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPTED), role, str(self.log)],
                env=self.settings.child_environment(PYTHONPATH=str(ROOT)),
                stdout=out,
                stderr=out,
            )
        self._processes.append(process)
        if not wait:
            return process

        def is_idle() -> bool:
            assert process.poll() is None, (self.folder / f"{role}.out").read_text()
            facts = self.client.workers()
            return any(f.id.endswith(f"-{process.pid}") and f.state == "idle" for f in facts)

        wait_for(f"the {role} worker is idle", is_idle)
        return process

    def redis_connection(self) -> Redis:
        return Redis.from_url(self.redis.url)

    def keep_house(self) -> Housekeeper:
        keeper = Housekeeper(self.client)
        keeper.start()
        self._keepers.append(keeper)
        return keeper

    def submit(self, name: str, *, webhook_url: str | None = None, **script: object) -> Job:
        """Queue a job whose prompt is the script."""
        request = self.request(name, **script)
        labels = JobLabels(webhook_url=webhook_url)
        return self.client.submit_video(request, labels, key_id=KEY).job

    def request(self, name: str, **script: object) -> VideoJobRequest:
        return VideoJobRequest(
            model="scripted-video",
            image=self.picture(),
            prompt=json.dumps({"name": name, **script}),
            seconds=1.0,
            fps=8.0,
            width=64,
            height=64,
            seed=1,
            steps=3,
        )

    def picture(self) -> str:
        """The id of a stored picture."""
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32)).save(buffer, "PNG")
        stored = self.client.store.files.put(
            buffer.getvalue(), name="a.png", media_type="image/png", key_id=KEY, purpose="vision"
        )
        return stored.id

    wait_for = staticmethod(wait_for)

    def job(self, job: Job) -> Job:
        return self.client.store.jobs.get(job.id)

    def status(self, job: Job) -> str:
        return str(self.job(job).status)

    def finished(self, job: Job, timeout_s: float = PATIENCE_S) -> Job:
        wait_for("the job has ended", lambda: self.job(job).status.is_terminal, timeout_s)
        return self.job(job)

    def runs(self, line: str) -> int:
        """How often `line` is in the log of the scripted engines."""
        return self.lines().count(line)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def close(self) -> None:
        for keeper in self._keepers:
            keeper.stop()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.client.close()
        self.redis.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix sockets have little room."""
    with tempfile.TemporaryDirectory(prefix="lw-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    """A fresh data folder with its Redis."""
    made = Place(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def place_of_module() -> Iterator[Place]:
    """One data folder for all tests of a module."""
    with tempfile.TemporaryDirectory(prefix="lw-", ignore_cleanup_errors=True) as name:
        made = Place(Path(name))
        yield made
        made.close()
