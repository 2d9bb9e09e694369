"""A tensor whose memory is taken when it is first written, and can be returned by rows."""

import ctypes
import mmap
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

import torch


class LazyTensor:
    """A zeroed CPU tensor over an anonymous mapping of its own.

    Reserving costs address space only: the system gives a page of memory at its first write.
    Invariant: rows given back read as zeros, like rows never written. Systems without
    `MADV_DONTNEED` on private mappings keep the memory; the rows are zeroed there.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Reserve. Shapes: any with a first dimension, whose rows can be given back."""
        num_items = torch.Size(shape).numel()
        self._row_bytes = num_items // shape[0] * dtype.itemsize
        self._map = _map(max(1, num_items * dtype.itemsize))
        flat = torch.frombuffer(self._map, dtype=dtype, count=num_items)
        self.tensor = flat.view(*shape)

    def give_back(self, rows: Iterable[int]) -> None:
        """Zero rows, and return the memory that they alone hold to the system."""
        for first, last in _runs(sorted(set(rows))):
            self._zero(first * self._row_bytes, (last + 1) * self._row_bytes)

    def _zero(self, start: int, end: int) -> None:
        inner = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        outer = end // mmap.PAGESIZE * mmap.PAGESIZE
        if inner >= outer or not _can_return():
            self._fill(start, end)
            return
        self._fill(start, inner)
        self._fill(outer, end)
        self._map.madvise(mmap.MADV_DONTNEED, inner, outer - inner)

    def _fill(self, start: int, end: int) -> None:
        if end > start:
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._map, start))
            ctypes.memset(address, 0, end - start)


def _can_return() -> bool:
    """Whether the system drops private pages at once; others may drop them late or never."""
    return sys.platform == "linux"


def _map(size_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _runs(rows: list[int]) -> Iterable[tuple[int, int]]:
    """Neighbouring rows as (first, last)."""
    for _, group in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
        members = [row for _, row in group]
        yield members[0], members[-1]
