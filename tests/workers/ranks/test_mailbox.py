"""The mailbox between processes: all arrives, whole and in order, and rest costs nothing."""

import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.ranks.mailbox import (
    LOOK_EVERY_S,
    MailboxError,
    MailboxShape,
    MailReader,
    MailWriter,
    create_memory,
)


def make(num_readers=1, **shape):
    shape = MailboxShape(num_readers=num_readers, **shape)
    memory = create_memory(shape.size_bytes, "test")
    bells = [os.eventfd(0) for _ in range(num_readers)]
    readers = [MailReader(memory, shape, r, bell) for r, bell in enumerate(bells)]
    return MailWriter(memory, shape, bells), readers


@settings(deadline=None, max_examples=25)
@given(
    messages=st.lists(st.binary(max_size=200), min_size=1, max_size=12),
    slot_bytes=st.integers(1, 70),
    num_slots=st.integers(1, 4),
    num_readers=st.integers(1, 3),
)
def test_every_reader_gets_every_message_in_order(messages, slot_bytes, num_slots, num_readers):
    writer, readers = make(num_readers, slot_bytes=slot_bytes, num_slots=num_slots)
    got = [[] for _ in readers]

    def read(reader, into):
        into.extend(reader.receive() for _ in messages)

    threads = [threading.Thread(target=read, args=pair) for pair in zip(readers, got, strict=True)]
    for thread in threads:
        thread.start()
    for message in messages:
        writer.send(message, timeout_s=20)
    for thread in threads:
        thread.join(20)
    assert got == [messages] * num_readers


def test_a_reader_that_reads_nothing_is_named():
    writer, (first, _) = make(2, num_slots=2)
    writer.send(b"a", timeout_s=1)
    writer.send(b"b", timeout_s=1)
    first.receive()
    first.receive()
    with pytest.raises(MailboxError, match=r"reader 1 has read 0 of 2 parts .* holds 2"):
        writer.send(b"c", timeout_s=0.05)


def test_waiting_for_room_ends_when_looking_around_raises():
    writer, _ = make(1, num_slots=1)
    writer.send(b"a", timeout_s=1)

    def look_around():
        raise KeyError("the reader is gone")

    with pytest.raises(KeyError):
        writer.send(b"b", timeout_s=60, look_around=look_around)


def test_a_sleeping_reader_is_woken_at_once():
    writer, (reader,) = make()
    arrived_s = []

    def read():
        reader.receive()
        arrived_s.append(time.monotonic())

    delays_s = []
    for _ in range(5):
        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.06)
        sent_s = time.monotonic()
        writer.send(b"x", timeout_s=1)
        thread.join(5)
        delays_s.append(arrived_s[-1] - sent_s)
    # Woken by the bell, not by the next look around.
    assert sorted(delays_s)[2] < LOOK_EVERY_S / 4


def test_an_idle_reader_looks_around_and_uses_no_processor_time():
    _, (reader,) = make()
    looks = []

    def look_around():
        looks.append(time.monotonic())
        if looks[-1] - looks[0] > 1.2:
            raise TimeoutError

    used_s = time.thread_time()
    with pytest.raises(TimeoutError):
        reader.receive(look_around)
    assert 4 <= len(looks) <= 8
    assert time.thread_time() - used_s < 0.05


def test_short_waits_are_spun_through():
    writer, (reader,) = make()
    for _ in range(20):
        writer.send(b"x", timeout_s=1)
        reader.receive(lambda: pytest.fail("slept"))
    threading.Timer(0.0005, lambda: writer.send(b"late", timeout_s=1)).start()
    assert reader.receive() == b"late"
