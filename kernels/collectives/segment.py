"""One piece of memory that all ranks of a group map: cells of 8 bytes, and room for tensors."""

from __future__ import annotations

import mmap
import os
import platform

import torch
import torch.distributed as dist

from kernels.collectives.errors import CollectiveError
from kernels.collectives.group import Group

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
    """A mapping of `size_bytes` that the group shares and that never has a name in a folder.

    Rank 0 creates it and keeps it open until everyone has mapped it, under its descriptor: however
    a group ends, nothing is left behind, and no folder's size limits it.
    Raises: CollectiveError when there is no room for it, or rank 0 is gone.
    """

    def __init__(self, group: Group, store: dist.Store, name: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._descriptor: int | None = None
        if group.rank == 0:
            descriptor = self._descriptor = _create(name, size_bytes)
            store.set(f"segment-{name}", f"/proc/{os.getpid()}/fd/{descriptor}")
            self._map = mmap.mmap(descriptor, size_bytes)
            return
        path = store.get(f"segment-{name}").decode()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CollectiveError(
                f"rank {group.rank} cannot open the memory of rank 0, {path}: {error.strerror}. "
                "Ranks of one user on one host share it while rank 0 lives",
                (0,),
            ) from error
        try:
            self._map = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def forget_name(self) -> None:
        """Close what others open it by; call once every rank has mapped it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def cells(self, offset: int, count: int) -> memoryview:
        """`count` signed 8-byte cells from a byte offset that 8 divides."""
        return memoryview(self._map)[offset : offset + 8 * count].cast("q")

    def payload(self, offset: int, size_bytes: int) -> torch.Tensor:
        """Bytes from an offset as a uint8 tensor over the same memory."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size_bytes, offset=offset)


def _create(name: str, size_bytes: int) -> int:
    descriptor = os.memfd_create(f"lanewise-{name}")
    try:
        # Taken now: memory that is missing later ends a process without a word.
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        os.close(descriptor)
        raise CollectiveError(
            f"no room for {size_bytes} bytes of shared memory: {error.strerror}. Free memory, or "
            "use smaller slots"
        ) from error
    return descriptor


def aligned(offset: int) -> int:
    """The next page border."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES
