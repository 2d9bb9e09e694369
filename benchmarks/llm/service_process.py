"""`lanewise serve` for a measurement: in a temporary folder, on a free port, without video."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.llm.contestants import Setting
from benchmarks.llm.http_stream import Service
from benchmarks.report import ROOT
from workers.deployment.redis_server import socket_path

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 30.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """A service that was started here, and what to look at it with."""

    service: Service
    pid: int
    redis_url: str


@contextmanager
def running_service(setting: Setting) -> Generator[RunningService]:
    """Start, wait until it is ready, and stop it at the end.

    Raises: OSError with the end of its log where it does not become ready.
    """
    data = Path(tempfile.mkdtemp(prefix="lanewise-bench-serve-"))
    log = setting.log_of("service")
    process, url = _started(setting, data, log)
    try:
        key = _wait_for_key(process, data, log)
        yield RunningService(
            service=Service(url=url, api_key=key, model=setting.model),
            pid=process.pid,
            redis_url=f"unix://{socket_path(data / 'run')}",
        )
    finally:
        _stop(process)
        shutil.rmtree(data, ignore_errors=True)


def _started(setting: Setting, data: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "env", f"LANEWISE_NUM_THREADS={setting.threads}",
        sys.executable, "-m", "service.cli", "serve", "--data", str(data), "--port", str(port),
        "--host", "127.0.0.1", "--model", setting.model, "--video-model", "none",
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    return process, f"http://127.0.0.1:{port}"


def _wait_for_key(process: subprocess.Popen[bytes], data: Path, log: Path) -> str:
    endpoint = data / "run" / "endpoint.json"
    deadline = time.monotonic() + _START_LIMIT_S
    while not endpoint.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-800:]
            raise OSError(f"the service is not ready (exit {process.returncode}): {tail}")
        time.sleep(_LOOK_S)
    return Path(json.loads(endpoint.read_text())["key_file"]).read_text().strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
