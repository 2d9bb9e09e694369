"""What each rank says of itself, in memory that all processes of the group map."""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_ROW_BYTES = 4096
_ROW_CELLS = _ROW_BYTES // 8
# Cells of a row; its text follows.
_PID, _STARTED, _EPOCH, _PHASE, _BEGUN, _DONE, _PROGRESS_NS, _TEXT_BYTES = range(8)
_TEXT = 64
_MOST_TEXT_BYTES = _ROW_BYTES - _TEXT


class Phase(IntEnum):
    """How far a rank is on its way through an epoch."""

    ABSENT = 0
    ARRIVED = 1
    LOADING = 2
    IDLE = 3
    STEPPING = 4
    FAILED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One row as it was read. `started` is the process's start in clock ticks since boot.

    `begun` and `done` count the commands that the rank has begun and ended; `text` says what it
    is doing, or why it failed.
    """

    rank: int
    pid: int
    started: int
    epoch: int
    phase: Phase
    begun: int
    done: int
    progress_ns: int
    text: str


class Beats:
    """The page of a group: row r is written by rank r alone, and read by whoever watches."""

    def __init__(self, descriptor: int, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._map = memoryview(mmap.mmap(descriptor, self.size_bytes(num_ranks)))
        self._cells = self._map.cast("q")

    @staticmethod
    def size_bytes(num_ranks: int) -> int:
        """Bytes of memory for so many ranks."""
        return num_ranks * _ROW_BYTES

    def read(self, rank: int) -> Beat:
        """What a rank says at this moment."""
        at = rank * _ROW_CELLS
        values = self._cells[at : at + _TEXT_BYTES + 1].tolist()
        begin = rank * _ROW_BYTES + _TEXT
        raw = bytes(self._map[begin : begin + min(values[_TEXT_BYTES], _MOST_TEXT_BYTES)])
        return Beat(
            rank=rank,
            pid=values[_PID],
            started=values[_STARTED],
            epoch=values[_EPOCH],
            phase=Phase(values[_PHASE]),
            begun=values[_BEGUN],
            done=values[_DONE],
            progress_ns=values[_PROGRESS_NS],
            text=raw.decode(errors="replace"),
        )

    def all(self) -> tuple[Beat, ...]:
        """What every rank says."""
        return tuple(self.read(rank) for rank in range(self.num_ranks))

    def row(self, rank: int, epoch: int) -> Row:
        """The row to write, with this process's identity in it."""
        return Row(self._map[rank * _ROW_BYTES : (rank + 1) * _ROW_BYTES], epoch)


class Row:
    """The writing end of one row."""

    def __init__(self, row: memoryview, epoch: int) -> None:
        self._row, self._cells = row, row.cast("q")
        self._cells[_PID] = os.getpid()
        self._cells[_STARTED] = started_ticks()
        self._cells[_EPOCH] = epoch
        self.enter(Phase.ARRIVED, "arrived")

    def enter(self, phase: Phase, text: str = "") -> None:
        """Say that a phase has begun, and what for."""
        raw = text.encode()[:_MOST_TEXT_BYTES]
        self._row[_TEXT : _TEXT + len(raw)] = raw
        self._cells[_TEXT_BYTES] = len(raw)
        self._cells[_PHASE] = phase
        self.touch()

    def begin(self, number: int) -> None:
        """Say that command `number` (from 1) is being carried out."""
        self._cells[_BEGUN] = number
        self._cells[_PHASE] = Phase.STEPPING
        self.touch()

    def end(self, number: int) -> None:
        """Say that command `number` is done."""
        self._cells[_DONE] = number
        self._cells[_PHASE] = Phase.IDLE
        self.touch()

    def touch(self) -> None:
        """Say that this rank is alive and at its post."""
        self._cells[_PROGRESS_NS] = time.monotonic_ns()


def started_ticks() -> int:
    """When this process started, in clock ticks since boot; 0 where /proc does not say."""
    stat = Path("/proc/self/stat")
    if not stat.is_file():
        return 0
    after_name = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(after_name[19])
