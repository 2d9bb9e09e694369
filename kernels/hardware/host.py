"""The processors and the memory of the present machine, from procfs and sysfs."""

import re
from pathlib import Path

from kernels.hardware.machine import Host
from kernels.hardware.traits import load_traits

# The richest level first: the first whose flags are all present is the processor's.
CPU_LEVELS = ("amx", "avx512_bf16", "avx512", "avx2", "cpu_baseline")


def cpu_family(flags: frozenset[str]) -> str:
    """The family of a processor with these /proc/cpuinfo flags."""
    return next(level for level in CPU_LEVELS if flags.issuperset(load_traits(level).cpu_flags))


def read_host(proc_root: Path, sys_root: Path) -> tuple[Host, tuple[str, ...]]:
    """The host, and a note for every fact that could not be read.

    Memory is the smaller of the machine's and the control group's limit. A fact that cannot be
    read becomes the smallest one possible, so that no plan counts on what may not be there.
    """
    notes: list[str] = []
    cpuinfo = read_text(proc_root / "cpuinfo", notes)
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is None:
        notes.append(f"CPU level: {proc_root / 'cpuinfo'} lists no flags; taken as cpu_baseline")
    num_cores = len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE))
    if not num_cores:
        notes.append(f"CPU cores: {proc_root / 'cpuinfo'} lists no processor; taken as 1")
    notes.append("host memory bandwidth: no file states it; it has to be measured")
    host = Host(
        cpu_family=cpu_family(frozenset(flags.group(1).split() if flags else ())),
        num_cores=num_cores or 1,
        num_numa_nodes=_num_numa_nodes(sys_root, notes),
        memory_bytes=_memory_bytes(proc_root, sys_root, notes),
        memory_bandwidth_bytes_s=None,
    )
    return host, tuple(notes)


def read_text(file: Path, notes: list[str]) -> str:
    """The file's text; the empty string, and a note, where it cannot be read."""
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{file}: cannot be read: {error.strerror}")
        return ""


def _num_numa_nodes(sys_root: Path, notes: list[str]) -> int:
    folder = sys_root / "devices" / "system" / "node"
    names = [path.name for path in folder.glob("node*") if re.fullmatch(r"node\d+", path.name)]
    if not names:
        notes.append(f"NUMA nodes: {folder} holds none; taken as 1")
    return len(names) or 1


def _memory_bytes(proc_root: Path, sys_root: Path, notes: list[str]) -> int:
    meminfo = re.search(
        r"^MemTotal:\s+(\d+) kB", read_text(proc_root / "meminfo", notes), re.MULTILINE
    )
    if meminfo is None:
        notes.append(f"host memory: {proc_root / 'meminfo'} states no MemTotal; taken as 1 GiB")
    total_bytes = int(meminfo.group(1)) * 1024 if meminfo else 1 << 30
    limit = sys_root / "fs" / "cgroup" / "memory.max"
    text = limit.read_text("utf-8").strip() if limit.is_file() else "max"
    limit_bytes = int(text) if text.isdigit() else total_bytes
    if limit_bytes < total_bytes:
        notes.append(f"host memory: {limit} allows {limit_bytes} B of {total_bytes} B")
    return min(total_bytes, limit_bytes)
