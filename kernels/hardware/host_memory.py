"""What the host's memory holds for this process: the system's figures and its control group."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Units: bytes. `available_bytes` can be taken without swapping; `bound_by` says who rules."""

    total_bytes: int
    available_bytes: int
    bound_by: str


def read_machine_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> MachineMemory:
    """The tighter of the system's memory and the process's control group (version 1 or 2).

    Without `/proc` the total comes from the C library, and half of it counts as available.
    """
    meminfo = _text(proc / "meminfo")
    total, available = _kib(meminfo, "MemTotal"), _kib(meminfo, "MemAvailable")
    bound_by = "the system's available memory"
    if total is None:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available is None:
        available, bound_by = total // 2, "half of the system's memory"
    for line in _text(proc / "self" / "cgroup").splitlines():
        limit, left = _group_memory(line, cgroups)
        if limit is not None and limit < total:
            total = limit
        if left is not None and left < available:
            available, bound_by = left, "the memory limit of the control group"
    return MachineMemory(total, available, bound_by)


def _group_memory(line: str, cgroups: Path) -> tuple[int | None, int | None]:
    """Limit of a control group, and what is left of it; file pages can be dropped."""
    _, controllers, path = line.split(":", 2)
    if controllers == "":
        folder, names = (
            cgroups / path.lstrip("/"),
            ("memory.max", "memory.current", "inactive_file"),
        )
    elif "memory" in controllers.split(","):
        folder = cgroups / "memory" / path.lstrip("/")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    else:
        return None, None
    limit, used = _text(folder / names[0]).strip(), _text(folder / names[1]).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _UNLIMITED_BYTES:
        return None, None
    droppable = re.search(rf"^{names[2]} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    left = int(limit) - int(used) + (int(droppable.group(1)) if droppable else 0)
    return int(limit), max(0, left)


def _kib(meminfo: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _text(path: Path) -> str:
    """A file's text; empty where it is not there or may not be read."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
