"""Rank 0's way to the others: commands with a number and an epoch, and what a step may take."""

from __future__ import annotations

import struct
from collections.abc import Callable

from workers.ranks.heartbeat import Row
from workers.ranks.mailbox import MailWriter

# Epoch and number of the command that follows.
HEADER = struct.Struct("<QQ")


class Leader:
    """Sends the commands of one epoch. See `llm_engine.parallel.commands.Commands`.

    `number` counts what was sent; followers say in their rows how far they have come.
    `expected_s` is how long the step under way is predicted to take, None where nobody knows.
    """

    def __init__(
        self,
        writer: MailWriter,
        row: Row,
        epoch: int,
        *,
        timeout_s: float,
        look_around: Callable[[], None],
    ) -> None:
        """`look_around` raises where the group is broken, so that no command is lost unseen."""
        self.epoch = epoch
        self.number = 0
        self.expected_s: float | None = None
        self._writer, self._row = writer, row
        self._timeout_s, self._look_around = timeout_s, look_around

    def expect(self, duration_s: float | None) -> None:
        """Predict the next step's duration."""
        self.expected_s = duration_s

    def send(self, data: bytes) -> None:
        """Hand a command to all followers.

        Raises: what `look_around` raises; MailboxError where a follower reads nothing.
        """
        self._look_around()
        number = self.number + 1
        message = HEADER.pack(self.epoch, number) + data
        self._row.begin(number)
        self._writer.send(message, self._timeout_s, self._look_around)
        # After the message: whoever watches holds followers to what they can have seen.
        self.number = number

    def stop(self) -> None:
        """Tell all followers to end: a command without contents."""
        self.send(b"")
