"""The demo: the whole service on this machine, one chat, one clip, everything stopped again.

Runs on the CPU with the models that come with lanewise, in a temporary data folder, on a free
port, without a network. Leaves `motion.mp4` and `contact_sheet.png` beside this file.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from service.commands.chat import Conversation, first_llm
from service.commands.connection import Connection
from service.commands.downloads import clip_of, save_artifact, sheet_of
from service.commands.video import submit
from service.commands.watching import Interrupted, wait_for_job
from service.terminal import CommandFailed, size_text

HERE = Path(__file__).resolve().parent
QUESTION = "In two sentences: why is the sea blue?"
PROMPT = "slow zoom in, gentle waves"
START_LIMIT_S = 300.0
STOP_LIMIT_S = 30.0
LOG_TAIL_LINES = 40
BREATH_S = 0.2


class Stopwatch:
    """How long each step took."""

    def __init__(self) -> None:
        """Nothing measured yet."""
        self.steps: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block."""
        start = time.perf_counter()
        yield
        self.steps.append((name, time.perf_counter() - start))

    def table(self) -> Table:
        """All steps and their sum."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, seconds in self.steps:
            table.add_row(name, f"{seconds:.1f} s")
        table.add_row("[bold]all[/bold]", f"[bold]{sum(s for _, s in self.steps):.1f} s[/bold]")
        return table


class ServiceProcess:
    """`lanewise serve` as a child, with its log in a file."""

    def __init__(self, data: Path) -> None:
        """Start it on a free port."""
        self.data = data
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = data / "demo.log"
        command = [sys.executable, "-m", "service.cli", "serve", "--data", str(data)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=HERE.parent, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """Return while it runs.

        Raises: CommandFailed once it has ended.
        """
        code = self._process.poll()
        if code is not None:
            raise CommandFailed(f"The service ended with exit code {code}.")

    def key(self) -> str | None:
        """Its first key, once everything is ready."""
        path = self.data / "run" / "endpoint.json"
        if not path.exists():
            return None
        return Path(json.loads(path.read_text())["key_file"]).read_text().strip()

    def stop(self) -> None:
        """Ask it to stop, wait for its whole tree; after the limit, end it by force."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_tail(self) -> str:
        """The last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def main() -> int:
    """Run the demo; 0 when all of it worked."""
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)
    data = Path(tempfile.mkdtemp(prefix="lanewise-demo-"))
    service: ServiceProcess | None = None
    try:
        service = ServiceProcess(data)
        _show(console, service)
        return 0
    except (KeyboardInterrupt, Interrupted):
        console.print("\nInterrupted; everything is stopped.")
        return 130
    except (CommandFailed, OSError) as error:
        console.print(f"\n[red bold]The demo failed:[/red bold] {error}", markup=True)
        if service is not None:
            console.print("[dim]The end of the service's log:[/dim]")
            console.print(service.log_tail(), markup=False, soft_wrap=True)
        return 1
    finally:
        if service is not None:
            service.stop()
        shutil.rmtree(data, ignore_errors=True)


def _show(console: Console, service: ServiceProcess) -> None:
    watch = Stopwatch()
    console.print("[bold]lanewise[/bold]  chat and image-to-video on this machine\n")
    with watch.step("start"):
        key = _await_ready(console, service)
    with Connection(service.url, key) as connection:
        with watch.step("chat"):
            _chat(console, connection)
        with watch.step("clip"):
            job = _make_clip(console, connection)
        with watch.step("save"):
            paths = _save(connection, job)
    with watch.step("stop"), console.status("stopping"):
        service.stop()
    for path in paths:
        console.print(f"  [green]✓[/green] {path}  [dim]{size_text(path.stat().st_size)}[/dim]")
    console.print()
    console.print(watch.table())
    console.print("\nYour own: [bold]lanewise serve[/bold], then open the address it prints.")


def _await_ready(console: Console, service: ServiceProcess) -> str:
    """Wait for every component, with a line for each as it gets ready; the key."""
    shown: set[str] = set()
    start = time.monotonic()
    with console.status("starting") as status:
        while time.monotonic() - start < START_LIMIT_S:
            service.check()
            _show_ready(console, service.url, shown, start)
            if (key := service.key()) is not None:
                console.print(f"  [dim]{service.url}[/dim]\n")
                return key
            status.update(f"starting, waiting for the {'models' if shown else 'gateway'}")
            time.sleep(BREATH_S)
    raise CommandFailed(f"The service was not ready after {START_LIMIT_S:.0f} s.")


def _show_ready(console: Console, url: str, shown: set[str], start: float) -> None:
    try:
        facts = httpx.get(f"{url}/readyz", timeout=5, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return
    missing = {entry["what"] for entry in facts["not_ready"]}
    present = ["gateway", *(name for name in ("redis", "database") if name not in missing)]
    present += [
        f"{worker['role']} worker  [dim]{worker['model']} on {worker['devices'] or 'cpu'}[/dim]"
        for worker in facts["workers"]
        if worker["state"] in {"idle", "busy"}
    ]
    for name in present:
        if name not in shown:
            shown.add(name)
            took = time.monotonic() - start
            console.print(f"  [green]✓[/green] {name}  [dim]{took:.1f} s[/dim]")


def _chat(console: Console, connection: Connection) -> None:
    talk = Conversation(connection, first_llm(connection), {"max_tokens": 64, "temperature": 0})
    console.print(f"[bold]chat[/bold]   {QUESTION}")
    console.print("       ", end="")
    num_pieces = 0
    for piece in talk.ask(QUESTION):
        num_pieces += 1
        console.print(piece, end="", markup=False, soft_wrap=True)
    console.print("\n")
    if num_pieces == 0:
        raise CommandFailed("The language model gave an empty answer.")


def _make_clip(console: Console, connection: Connection) -> dict[str, Any]:
    console.print(f"[bold]video[/bold]  picture.jpg, “{PROMPT}”")
    job = submit(connection, HERE / "picture.jpg", {"prompt": PROMPT, "seed": 7})
    return wait_for_job(connection, job["id"], console)


def _save(connection: Connection, job: dict[str, Any]) -> list[Path]:
    """Both files land whole or not at all, so that two demos may run at once."""
    paths: list[Path] = []
    for artifact, name in ((clip_of(job), "motion.mp4"), (sheet_of(job), "contact_sheet.png")):
        if artifact is None:
            raise CommandFailed(f"The job made no {name}.")
        paths.append(save_artifact(connection, artifact, HERE / name))
    return paths


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
