"""A gateway, a Redis and a stepping worker as processes, and a client that costs little."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from workers.client import Client
from workers.deployment.redis_server import plan_redis, trouble_with
from workers.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
MODEL = "stepping"


@dataclass
class Heard:
    """One stream as a client saw it. Times in seconds since the request was sent."""

    status: int = 0
    text: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    events: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return bool(self.events) and self.events[-1] == "[DONE]"


class Deployment:
    """Everything but the supervisor; `script` goes to the stepping worker."""

    def __init__(self, folder: Path, script: dict[str, float], **settings: object) -> None:
        plan = plan_redis(Settings(data_dir=folder))
        self.settings = Settings(
            data_dir=folder, redis_url=plan.url, llm_model=MODEL, video_model="none", auth="off",
            port=_free_port(), **settings,
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.settings.port}"
        script_file = folder / "script.json"
        script_file.write_text(json.dumps(script))
        assert plan.command is not None
        self._folder = folder
        self.redis = self._start("redis", list(plan.command))
        _until(lambda: trouble_with(plan.url) is None)
        stepping = str(ROOT / "tests" / "workers" / "stepping.py")
        self.worker = self._start("worker", [sys.executable, stepping, str(script_file)])
        self.gateway = self._start("gateway", [sys.executable, "-m", "service"])
        self.client = Client.connect(self.settings)
        _until(self._is_ready)

    def _start(self, name: str, command: list[str]) -> psutil.Process:
        with (self._folder / f"{name}.out").open("wb") as out:
            environment = self.settings.child_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=ROOT)
        return psutil.Process(process.pid)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def stats(self) -> dict[str, float]:
        """The worker's counters, as of a beat that is still to come."""
        before = self.client.workers()[0].beat_at
        _until(lambda: self.client.workers()[0].beat_at > before)
        return self.client.workers()[0].stats

    def close(self) -> None:
        self.client.close()
        for process in (self.gateway, self.worker, self.redis):
            if not process.is_running():
                continue
            process.terminate()
            try:
                process.wait(40)
            except psutil.TimeoutExpired:
                process.kill()


async def stream(
    port: int,
    num_tokens: int,
    path: str = "/v1/chat/completions",
    begun: asyncio.Event | None = None,
) -> Heard:
    """One streamed chat over a bare socket; `begun` is set by its first text."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "max_tokens": num_tokens,
        }
    ).encode()
    heard = Heard()
    started_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    status = await reader.readline()
    heard.status = int(status.split()[1])
    while await reader.readline() != b"\r\n":
        pass
    while size := int(await reader.readline(), 16):
        block = (await reader.readexactly(size + 2))[:-2]
        for line in block.split(b"\n\n"):
            if not line.startswith(b"data: "):
                continue
            heard.events.append(line[6:].decode())
            if b'"content":"' in line and b'"role"' not in line:
                heard.last_s = time.perf_counter() - started_s
                heard.first_s = heard.first_s or heard.last_s
                if begun is not None:
                    begun.set()
    writer.close()
    chunks = [json.loads(event) for event in heard.events if event != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
    heard.text = "".join(delta.get("content") or "" for delta in deltas)
    return heard


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process so far."""
    times = process.cpu_times()
    return times.user + times.system


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(is_so, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
