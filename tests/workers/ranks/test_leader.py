"""The leader numbers its commands and sends none into a broken group."""

import os

import pytest

from kernels.collectives.errors import RankLost
from workers.ranks.heartbeat import Beats
from workers.ranks.leader import HEADER, Leader
from workers.ranks.mailbox import MailboxShape, MailReader, MailWriter, create_memory


def make(look_around=lambda: None):
    shape = MailboxShape(num_readers=1)
    mail = create_memory(shape.size_bytes, "mail")
    bell = os.eventfd(0)
    row = Beats(create_memory(Beats.size_bytes(2), "beat"), 2).row(0, 5)
    leader = Leader(MailWriter(mail, shape, [bell]), row, 5, timeout_s=1, look_around=look_around)
    return leader, MailReader(mail, shape, 0, bell)


def test_commands_carry_their_epoch_and_number():
    leader, reader = make()
    leader.expect(0.5)
    for text in (b"a", b"b"):
        leader.send(text)
    assert [reader.receive() for _ in range(2)] == [
        HEADER.pack(5, 1) + b"a",
        HEADER.pack(5, 2) + b"b",
    ]
    assert (leader.number, leader.expected_s) == (2, 0.5)


def test_nothing_is_sent_where_the_group_is_broken():
    def look_around():
        raise RankLost("epoch 5 is over", (1,))

    leader, _ = make(look_around)
    with pytest.raises(RankLost):
        leader.send(b"a")
    assert leader.number == 0
