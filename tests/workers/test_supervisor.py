"""The supervisor with real child processes around scripted engines."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.deployment.supervisor import Commands, Supervisor
from workers.settings import Settings

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Serving:
    """A supervisor process."""

    def __init__(self, folder: Path, **settings):
        self.folder = folder
        chosen = Settings(
            data_dir=folder,
            port=0,
            **({"llm_model": "scripted-chat", "video_model": "scripted-video"} | settings),
        )
        self._out = folder / "serve.out"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "scripted_serve.py"), str(folder / "run.log")],
                env=chosen.child_environment(PYTHONPATH=str(ROOT)),
                stdout=out,
                stderr=out,
            )

    @property
    def text(self) -> str:
        return self._out.read_text()

    @property
    def endpoint(self) -> Path:
        return self.folder / "run" / "endpoint.json"

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while not self.endpoint.exists() or "ready at" not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def family(self) -> set[int]:
        """All processes that have this data folder in their environment or command line."""
        mark, found = str(self.folder).encode(), set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    is_zombie = b"\nState:\tZ" in (entry / "status").read_bytes()
                except OSError:
                    continue
                if mark in text and not is_zombie:
                    found.add(int(entry.name))
        return found

    def child(self, word: str) -> int:
        """The pid of the child that has `word` as an argument or as its program's end."""
        if word == "redis":
            return int((self.folder / "run" / "redis.pid").read_text())
        for pid in self.family() - {self.process.pid}:
            parts = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if word.encode() in parts or any(p.endswith(word.encode()) for p in parts[:2]):
                return pid
        raise AssertionError(f"no child {word}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture
def serve(folder):
    started = []

    def start(**settings):
        started.append(Serving(folder, **settings))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.slow
def test_life_of_a_deployment(serve, folder):
    serving = serve()
    serving.wait_until_ready()
    endpoint = json.loads(serving.endpoint.read_text())
    assert endpoint["pid"] == serving.process.pid
    assert endpoint["url"].startswith("http://127.0.0.1:")

    key_file = folder / "first-key.txt"
    assert endpoint["key_file"] == str(key_file)
    assert key_file.stat().st_mode & 0o777 == 0o600
    secret = key_file.read_text().strip()
    assert secret.startswith("sk-")
    assert serving.text.count(secret) == 1
    for word in ("role", "scripted-chat", "scripted-video", "idle", "using redis-server 7"):
        assert word in serving.text

    second = subprocess.run(
        [sys.executable, str(HERE / "scripted_serve.py"), "x"],
        env=Settings(data_dir=folder, port=0).child_environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1
    assert str(serving.process.pid) in second.stdout
    assert str(folder) in second.stdout

    for word in ("llm", "video", "scripted_gateway.py", "redis"):
        old = serving.child(word)
        os.kill(old, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:
            try:
                if serving.child(word) != old:
                    break
            except (AssertionError, OSError, ValueError):
                assert time.monotonic() < deadline, serving.text
            time.sleep(0.1)

    everybody = serving.family()
    assert len(everybody) >= 5
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(45) == 0
    assert serving.family() == set()
    assert not serving.endpoint.exists()
    assert {path.name for path in (folder / "logs").iterdir()} >= {
        "gateway.log",
        "llm.log",
        "redis.log",
        "video.log",
    }


@pytest.mark.slow
def test_children_do_not_outlive_a_supervisor_that_was_killed(serve):
    serving = serve(llm_model="none")
    serving.wait_until_ready()
    serving.process.kill()
    serving.process.wait()
    deadline = time.monotonic() + 45
    while serving.family():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    again = serve(llm_model="none")
    again.wait_until_ready()
    assert "first key" not in again.text


@pytest.mark.slow
def test_a_child_that_cannot_live_ends_the_deployment_with_its_last_words(folder):
    bad = (sys.executable, "-c", "print('the disk is on fire'); raise SystemExit(7)")
    good = (sys.executable, str(HERE / "scripted_gateway.py"))
    out = io.StringIO()
    settings = Settings(data_dir=folder, port=0, llm_model="none", video_model="broken")
    commands = Commands(gateway=good, video=bad)
    assert Supervisor(settings, commands=commands, out=out).run() == 1
    assert "video ended again and again, the last time with exit code 7" in out.getvalue()
    assert "the disk is on fire" in out.getvalue()


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_worker_that_refuses_its_settings_ends_the_deployment_at_once(folder, code):
    line = "2026-01-01 00:00:00,000 ERROR workers.x: 9 GiB of cache do not fit; take 4"
    bad = (sys.executable, "-c", f"print('first'); print({line!r}); raise SystemExit({code})")
    good = (sys.executable, str(HERE / "scripted_gateway.py"))
    out = io.StringIO()
    settings = Settings(data_dir=folder, port=0, llm_model="big", video_model="none")
    commands = Commands(gateway=good, llm=bad)
    assert Supervisor(settings, commands=commands, out=out).run() == code
    assert "llm cannot run as set: 9 GiB of cache do not fit; take 4" in out.getvalue()
    assert "starting it again" not in out.getvalue()


def refused(**settings):
    out = io.StringIO()
    code = Supervisor(Settings(**settings), out=out).run()
    return code, out.getvalue()


def test_devices_may_not_be_shared(folder):
    code, text = refused(data_dir=folder, llm_devices="0-3", video_devices="2,5")
    assert code == 2
    assert "share 2;" in text


def test_a_port_in_use_is_told_before_anything_starts(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = refused(data_dir=folder, port=port)
    assert code == 1
    assert f"port {port} of 127.0.0.1 cannot be used" in text
    assert not (folder / "redis").exists()


@pytest.mark.parametrize(
    ("auth", "way_out"), [("off", "LANEWISE_AUTH=on"), ("on", "lanewise keys create")]
)
def test_other_machines_need_a_key(folder, auth, way_out):
    code, text = refused(data_dir=folder, host="0.0.0.0", port=0, auth=auth)
    assert code == 2
    assert way_out in text
    assert not (folder / "first-key.txt").exists()


def test_wrong_usage_of_the_module():
    found = subprocess.run(
        [sys.executable, "-m", "workers", "dance"], cwd=ROOT, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "usage" in found.stderr
