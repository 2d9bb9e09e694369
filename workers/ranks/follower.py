"""A follower's loop: take a command, carry it out, say so; for hours without one if need be."""

from __future__ import annotations

from collections.abc import Callable

from kernels.collectives.errors import StaleEpoch
from workers.ranks.heartbeat import Phase, Row
from workers.ranks.leader import HEADER
from workers.ranks.mailbox import MailReader

Execute = Callable[[bytes], object]


def follow(
    reader: MailReader,
    row: Row,
    epoch: int,
    execute: Execute,
    look_around: Callable[[], None] = lambda: None,
) -> int:
    """Carry out commands until the leader says to stop; how many there were.

    `look_around` is called a few times a second while idle and raises when the leader is gone.
    Raises: StaleEpoch for a command of another epoch; what `execute` raises.
    """
    row.enter(Phase.IDLE, "waiting for commands")
    done = 0

    def wait() -> None:
        row.touch()
        look_around()

    while True:
        message = reader.receive(wait)
        sent_in, number = HEADER.unpack_from(message)
        if sent_in != epoch:
            raise StaleEpoch(
                f"command {number} belongs to epoch {sent_in}, this rank to epoch {epoch}: "
                "its group was founded anew, so this rank must end"
            )
        if len(message) == HEADER.size:
            return done
        row.begin(number)
        execute(message[HEADER.size :])
        row.end(number)
        done = number
