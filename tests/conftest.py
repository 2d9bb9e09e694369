"""The whole service as a user starts it: `lanewise serve` in a process tree of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
READY_S = 180
# Short leases, so that a killed worker's job comes back within seconds.
QUICK = {"LANEWISE_LEASE_S": "6", "LANEWISE_BEAT_S": "1", "LANEWISE_RESEND_AFTER_S": "5"}


def picture_png(width: int = 160, height: int = 120, seed: int = 0) -> bytes:
    """A smooth random picture as PNG bytes."""
    small = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@dataclass
class Service:
    """A started `lanewise serve` and what a test needs to know of it."""

    data_dir: Path
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    key: str = ""
    log: Path = field(default=Path())

    def start(self) -> Service:
        """Start the tree and wait until it says it is ready."""
        self.log = self.data_dir.parent / f"{self.data_dir.name}.log"
        command = [sys.executable, "-m", "service.cli", "serve", "--data", str(self.data_dir)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", "0", *self.arguments],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=os.environ | QUICK,
                start_new_session=True,
            )
        endpoint = self.data_dir / "run" / "endpoint.json"
        wait_until(lambda: self._is_ready(endpoint), READY_S, "the service to be ready")
        self.key = (self.data_dir / "first-key.txt").read_text().strip()
        return self

    def _is_ready(self, endpoint: Path) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(
                f"serve ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}"
            )
        if not endpoint.exists():
            return False
        found = json.loads(endpoint.read_text())
        if found["pid"] != self.process.pid:
            return False  # left by a tree that was killed
        self.url = found["url"]
        return True

    def tree(self) -> list[psutil.Process]:
        """The supervisor and everything below it."""
        assert self.process is not None
        try:
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def child(self, *words: str) -> psutil.Process:
        """The one process of the tree whose command line holds all the words."""
        found = []
        for process in self.tree()[1:]:
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words):
                found.append(process)
        assert found, f"no child with {words} in its command line"
        return found[0]

    def kill_tree(self) -> None:
        """SIGKILL to everything at once."""
        processes = self.tree()
        for process in processes:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=20)
        assert self.process is not None
        self.process.wait(20)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    def client(self) -> httpx.Client:
        """An HTTP client with the key."""
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=120
        )

    def submit(self, client: httpx.Client, **fields: Any) -> dict[str, Any]:
        """Submit a small clip; returns the job."""
        form = {"prompt": "slow zoom in", "seconds": "0.5", "size": "128x96"} | {
            name: str(value) for name, value in fields.items()
        }
        files = {"image": ("picture.png", picture_png(), "image/png")}
        answer = client.post("/jobs", data=form, files=files)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def wait_for(self, client: httpx.Client, job_id: str, timeout_s: float = 150) -> dict[str, Any]:
        """Poll a job until its state is terminal."""
        job: dict[str, Any] = {}

        def is_over() -> bool:
            nonlocal job
            try:
                answer = client.get(f"/jobs/{job_id}")
            except httpx.TransportError:
                return False  # the gateway is being restarted
            if answer.status_code >= 500:
                return False
            job = answer.json()
            return job["status"] in {"succeeded", "failed", "cancelled", "dead"}

        wait_until(is_over, timeout_s, f"job {job_id} to end; last seen {job}")
        return job


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s} s for {what}")
        time.sleep(0.1)


def ended(service: Service) -> None:
    """Stop what a test left running, whatever state it is in."""
    if service.process is not None and service.process.poll() is None:
        processes = service.tree()
        service.process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=60)
        for process in alive:
            process.kill()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two test processes share out files, so that a file's models load once.

    All that use the running service stay together: it is started once.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue  # it says itself where it belongs
        fixtures: list[str] = getattr(item, "fixturenames", [])
        group = "running service" if "running_service" in fixtures else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def running_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests that only talk to it."""
    service = Service(tmp_path_factory.mktemp("serve") / "data dir").start()
    yield service
    ended(service)


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Services that a test may kill; all are stopped afterwards."""
    started: list[Service] = []

    def make(*arguments: str, data_dir: Path | None = None) -> Service:
        service = Service(data_dir or tmp_path / "data", arguments)
        started.append(service)
        return service.start()

    yield make
    for service in started:
        ended(service)


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """Makes PNG bytes."""
    return picture_png
