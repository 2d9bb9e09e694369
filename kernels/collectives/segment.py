"""One piece of memory that all ranks of a group map: cells of 8 bytes, and room for tensors."""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from kernels.collectives.errors import CollectiveError
from kernels.collectives.group import Group

_FOLDER = Path("/dev/shm")
PAGE_BYTES = 4096


def unmet_memory_order() -> str | None:
    """Why flags in shared memory cannot be trusted here, or None where they can.

    A flag written after a payload must be seen after it. x86-64 keeps the order of stores and
    plain Python can rely on it; other processors need fences that Python cannot express.
    """
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        return None
    return f"{machine} may reorder stores; only x86-64 keeps a flag behind its payload"


class Segment:
    """A mapping of `size_bytes` that the group shares and that no file name outlives.

    Rank 0 creates a file, everyone maps it, and its name is removed once all have: a group that
    is killed leaves nothing behind.
    Raises: CollectiveError when there is no room for it.
    """

    def __init__(self, group: Group, store: dist.Store, name: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._path: Path | None = None
        if group.rank == 0:
            descriptor, path = _create(size_bytes)
            self._path = path
            store.set(f"segment-{name}", str(path))
        else:
            path = Path(store.get(f"segment-{name}").decode())
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def forget_name(self) -> None:
        """Remove the file's name; call once every rank has mapped it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def cells(self, offset: int, count: int) -> memoryview:
        """`count` signed 8-byte cells from a byte offset that 8 divides."""
        return memoryview(self._map)[offset : offset + 8 * count].cast("q")

    def payload(self, offset: int, size_bytes: int) -> torch.Tensor:
        """Bytes from an offset as a uint8 tensor over the same memory."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size_bytes, offset=offset)


def _create(size_bytes: int) -> tuple[int, Path]:
    folder = _FOLDER if os.access(_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
    free_bytes = _free_bytes(folder)
    if size_bytes > free_bytes:
        raise CollectiveError(
            f"{folder} has {free_bytes} bytes free, the group's shared memory needs {size_bytes}: "
            "make room there, or use smaller slots"
        )
    descriptor, name = tempfile.mkstemp(prefix="lanewise-", dir=folder)
    os.ftruncate(descriptor, size_bytes)
    return descriptor, Path(name)


def _free_bytes(folder: Path) -> int:
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def aligned(offset: int) -> int:
    """The next page border."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES
