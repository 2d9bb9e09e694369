"""Commands from one process to several through shared memory: read by all of them, in order."""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.collectives.segment import unmet_memory_order
from workers.errors import LanewiseError

SLOT_BYTES = 256 << 10
NUM_SLOTS = 8
# A sleeping reader looks around this often, though nobody rings: see `MailReader._sleep`.
LOOK_EVERY_S = 0.25
_LEAST_SPIN_S = 30e-6
_LONGEST_SPIN_S = 2e-3
_LINE_BYTES = 64
_LINE_CELLS = _LINE_BYTES // 8
# A reader's line: how many parts it has read, and whether it sleeps.
_READ, _ASLEEP = 0, 1
# A slot's line: bytes of its part, and of the message from here on.
_PART, _LEFT = 0, 1


class MailboxError(LanewiseError):
    """A reader leaves no room for the next message, or memory here cannot be relied on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxShape:
    """How the memory is laid out; both ends are given the same."""

    num_readers: int
    slot_bytes: int = SLOT_BYTES
    num_slots: int = NUM_SLOTS

    @property
    def size_bytes(self) -> int:
        """All of it: the writer's line, a line for each reader, the slots with theirs."""
        return _LINE_BYTES * (1 + self.num_readers) + self.num_slots * self._stride_bytes

    @property
    def _stride_bytes(self) -> int:
        return _LINE_BYTES + -(-self.slot_bytes // _LINE_BYTES) * _LINE_BYTES

    def slot_offset(self, part: int) -> int:
        """Where the slot of part number `part` begins."""
        first = _LINE_BYTES * (1 + self.num_readers)
        return first + part % self.num_slots * self._stride_bytes


class _Memory:
    """Cells and bytes of a mapping; x86-64 shows a count only after what was written before it."""

    def __init__(self, descriptor: int, shape: MailboxShape) -> None:
        if reason := unmet_memory_order():
            raise MailboxError(f"a mailbox cannot work here: {reason}")
        self.shape = shape
        self.bytes = memoryview(mmap.mmap(descriptor, shape.size_bytes))
        self.cells = self.bytes[: shape.size_bytes // 8 * 8].cast("q")

    def reader_cell(self, reader: int) -> int:
        return _LINE_CELLS * (1 + reader)


def create_memory(size_bytes: int, name: str) -> int:
    """A descriptor of zeroed memory without a file name, to be inherited by child processes."""
    descriptor = os.memfd_create(f"lanewise-{name}", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


class MailWriter:
    """The sending end.

    `bells` are event descriptors, one for each reader: written to where that reader sleeps.
    """

    def __init__(self, descriptor: int, shape: MailboxShape, bells: Sequence[int]) -> None:
        self._memory = _Memory(descriptor, shape)
        self._bells = tuple(bells)
        self._sent = 0

    def send(
        self, data: bytes, timeout_s: float, look_around: Callable[[], None] = lambda: None
    ) -> None:
        """Publish a message; it may take several slots.

        `look_around` is called while there is no room, and raises when waiting is pointless.
        Raises: MailboxError naming the reader that lets the writer wait beyond `timeout_s`.
        """
        shape, memory = self._memory.shape, self._memory
        for begin in range(0, max(len(data), 1), shape.slot_bytes):
            self._wait_for_room(timeout_s, look_around)
            part = data[begin : begin + shape.slot_bytes]
            offset = shape.slot_offset(self._sent)
            memory.cells[offset // 8 + _PART] = len(part)
            memory.cells[offset // 8 + _LEFT] = len(data) - begin
            payload = offset + _LINE_BYTES
            memory.bytes[payload : payload + len(part)] = part
            self._sent += 1
            memory.cells[0] = self._sent
            self._ring()

    def _ring(self) -> None:
        memory = self._memory
        for reader, bell in enumerate(self._bells):
            if memory.cells[memory.reader_cell(reader) + _ASLEEP]:
                os.eventfd_write(bell, 1)

    def _slowest(self) -> tuple[int, int]:
        """The fewest parts that a reader has read, and which reader."""
        memory = self._memory
        read = [
            (memory.cells[memory.reader_cell(reader) + _READ], reader)
            for reader in range(memory.shape.num_readers)
        ]
        return min(read)

    def _wait_for_room(self, timeout_s: float, look_around: Callable[[], None]) -> None:
        shape = self._memory.shape
        begin_s = time.monotonic()
        while self._sent - self._slowest()[0] >= shape.num_slots:
            look_around()
            if time.monotonic() - begin_s > timeout_s:
                num_read, reader = self._slowest()
                raise MailboxError(
                    f"reader {reader} has read {num_read} of {self._sent} parts and let the writer "
                    f"wait for {timeout_s:.1f} s: the mailbox holds {shape.num_slots}"
                )
            time.sleep(1e-3)


class MailReader:
    """A receiving end. It spins as long as waits have been short, and sleeps otherwise."""

    def __init__(self, descriptor: int, shape: MailboxShape, reader: int, bell: int) -> None:
        self._memory = _Memory(descriptor, shape)
        self._mine = self._memory.reader_cell(reader)
        self._bell = bell
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        self._read = 0
        self._usual_wait_s = 0.0

    def receive(self, look_around: Callable[[], None] = lambda: None) -> bytes:
        """The next message, however long it takes.

        `look_around` is called about four times a second while there is none; it raises to end
        the waiting.
        """
        parts: list[bytes] = []
        left = 1
        while left > 0:
            self._wait(look_around)
            memory = self._memory
            offset = memory.shape.slot_offset(self._read)
            size = memory.cells[offset // 8 + _PART]
            left = memory.cells[offset // 8 + _LEFT] - size
            payload = offset + _LINE_BYTES
            parts.append(bytes(memory.bytes[payload : payload + size]))
            self._read += 1
            memory.cells[self._mine + _READ] = self._read
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def _is_ready(self) -> bool:
        return self._memory.cells[0] > self._read

    def _wait(self, look_around: Callable[[], None]) -> None:
        begin_s = time.monotonic()
        spin_s = self._spin_s
        while not self._is_ready:
            waited_s = time.monotonic() - begin_s
            if waited_s > spin_s:
                self._sleep(look_around)
            elif waited_s > _LEAST_SPIN_S:
                time.sleep(0)
        waited_s = min(time.monotonic() - begin_s, 1.0)
        self._usual_wait_s += 0.25 * (waited_s - self._usual_wait_s)

    @property
    def _spin_s(self) -> float:
        """Twice the usual wait; nearly nothing where waits are longer than spinning is worth."""
        wanted_s = 2 * self._usual_wait_s
        return max(wanted_s, _LEAST_SPIN_S) if wanted_s < _LONGEST_SPIN_S else _LEAST_SPIN_S

    def _sleep(self, look_around: Callable[[], None]) -> None:
        """Sleep until the bell rings.

        A processor may look at the count before others see that this reader sleeps, so a ring can
        be missed; the bound on the sleep then costs a quarter of a second, once in a blue moon.
        """
        cells = self._memory.cells
        cells[self._mine + _ASLEEP] = 1
        try:
            while not self._is_ready:
                look_around()
                if self._poll.poll(LOOK_EVERY_S * 1e3):
                    os.eventfd_read(self._bell)
        finally:
            cells[self._mine + _ASLEEP] = 0
