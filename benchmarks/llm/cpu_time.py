"""CPU time of a service's processes and of their named threads, from /proc (Linux alone).

Unlike wall time it says the same beside any other load of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
_NS = 1e-9
# By what their command line holds; the first that fits.
_ROLES = (
    ("redis", ("redis-server", "valkey-server")),
    ("gateway", ("-m\0service\0", "-m\0service.__main__\0")),
    ("worker", ("workers",)),
)
# Threads of the worker that have a name of their own; the rest is the engine.
_WORKER_THREADS = {
    "chat-publisher": "worker: publisher",
    "chat-watcher": "worker: watcher",
}


def cpu_seconds(root: int) -> Mapping[str, float]:
    """CPU seconds so far of the processes below the process `root`, by part of the service.

    Parts: redis, gateway, supervisor, and of the worker its publisher, watcher, main thread (the
    queue) and the rest (the engine, with the short threads that hand requests over).
    """
    found: defaultdict[str, float] = defaultdict(float)
    for pid in (root, *_children(root)):
        role = _role(pid)
        for tid, name, seconds in _threads(pid):
            found[_part(role, name, is_main=tid == pid)] += seconds
    return found


def _part(role: str, thread: str, *, is_main: bool) -> str:
    if role != "worker":
        return role
    if is_main:
        return "worker: queue"
    return _WORKER_THREADS.get(thread, "worker: engine")


def _role(pid: int) -> str:
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return "supervisor"
    for role, signs in _ROLES:
        if any(sign in line for sign in signs):
            return role
    return "supervisor"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in (_PROC / str(pid) / "task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            found += [int(child), *_children(int(child))]
    return found


def _threads(pid: int) -> list[tuple[int, str, float]]:
    """(thread id, name, CPU seconds) of a process; a thread that ends meanwhile is left out."""
    found: list[tuple[int, str, float]] = []
    for task in (_PROC / str(pid) / "task").iterdir():
        try:
            name = (task / "comm").read_text(encoding="utf-8").strip()
            spent_ns = int((task / "schedstat").read_text(encoding="ascii").split()[0])
        except OSError:
            continue
        found.append((int(task.name), name, spent_ns * _NS))
    return found
