"""What a rank is told when it is started: its place, its epoch, its memory, its engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernels.collectives.group import Group
from llm_engine.parallel.mailbox import MailboxShape


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """One rank of one epoch. Descriptors are inherited; `config` is the engine's, plain values.

    `join_s` bounds how long the ranks may take to meet, `wait_s` any wait after that: a last
    resort, since whoever watches decides sooner. `data_dir` is where measured tables lie, or empty.
    """

    rank: int
    num_ranks: int
    epoch: int
    rendezvous: str
    parent_pid: int
    mail_descriptor: int
    bell_descriptor: int
    beat_descriptor: int
    join_s: float
    wait_s: float
    data_dir: str = ""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def group(self) -> Group:
        """This rank's place in its group."""
        return Group(
            rank=self.rank,
            size=self.num_ranks,
            rendezvous=self.rendezvous,
            epoch=self.epoch,
            timeout_s=self.join_s,
        )

    @property
    def mailbox(self) -> MailboxShape:
        """The mailbox of all followers."""
        return MailboxShape(num_readers=self.num_ranks - 1)

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankOrder:
        """The order that was written.

        Raises: ValueError or TypeError for anything else.
        """
        return cls(**json.loads(text))
