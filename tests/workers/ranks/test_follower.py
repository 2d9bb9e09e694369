"""A follower's loop: commands in order, other epochs refused, and no end of patience."""

import os
import time

import pytest

from kernels.collectives.errors import StaleEpoch
from workers.ranks.follower import follow
from workers.ranks.heartbeat import Beats, Phase, started_ticks
from workers.ranks.leader import HEADER, Leader
from workers.ranks.mailbox import MailboxShape, MailReader, MailWriter, create_memory


class Pair:
    """A leader and a follower's reader over the same memory, in one process."""

    def __init__(self, epoch=3):
        shape = MailboxShape(num_readers=1)
        mail = create_memory(shape.size_bytes, "mail")
        bell = os.eventfd(0)
        self.beats = Beats(create_memory(Beats.size_bytes(2), "beat"), 2)
        self.writer = MailWriter(mail, shape, [bell])
        self.looks = 0
        self.row = self.beats.row(1, epoch)
        self.reader = MailReader(mail, shape, 0, bell)
        self.leader = Leader(
            self.writer, self.beats.row(0, epoch), epoch, timeout_s=1, look_around=self.look
        )

    def look(self):
        self.looks += 1


def test_commands_are_carried_out_until_the_stop():
    pair, done = Pair(), []
    for text in (b"one", b"two"):
        pair.leader.send(text)
    pair.leader.stop()
    assert follow(pair.reader, pair.row, 3, done.append) == 2
    assert done == [b"one", b"two"]
    beat = pair.beats.read(1)
    assert (beat.begun, beat.done, beat.phase, beat.epoch) == (2, 2, Phase.IDLE, 3)
    assert (beat.pid, beat.started) == (os.getpid(), started_ticks())
    assert pair.beats.read(0).begun == 3


def test_a_command_of_another_epoch_is_refused():
    pair, done = Pair(), []
    pair.writer.send(HEADER.pack(2, 1) + b"old", timeout_s=1)
    with pytest.raises(StaleEpoch, match="command 1 belongs to epoch 2, this rank to epoch 3"):
        follow(pair.reader, pair.row, 3, done.append)
    assert not done


def test_what_a_command_raises_ends_the_loop_with_the_command_unfinished():
    pair = Pair()
    pair.leader.send(b"boom")

    def execute(data):
        assert pair.beats.read(1).phase == Phase.STEPPING
        raise MemoryError(data.decode())

    with pytest.raises(MemoryError, match="boom"):
        follow(pair.reader, pair.row, 3, execute)
    beat = pair.beats.read(1)
    assert (beat.begun, beat.done) == (1, 0)


def test_an_idle_follower_says_that_it_is_there_until_its_leader_is_gone():
    pair, seen_ns = Pair(), []

    def look_around():
        seen_ns.append(pair.beats.read(1).progress_ns)
        if len(seen_ns) == 4:
            raise EOFError("the leader is gone")

    begin_s = time.monotonic()
    with pytest.raises(EOFError):
        follow(pair.reader, pair.row, 3, lambda _: None, look_around)
    assert sorted(set(seen_ns)) == seen_ns
    assert time.monotonic() - begin_s < 5
