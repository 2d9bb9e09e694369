"""What a rank is told when it is started: its place, its epoch, its memory, its engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from kernels.collectives.group import Group
from workers.ranks.mailbox import MailboxShape


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """One rank of one epoch. Descriptors are inherited; `config` is the engine's, plain values.

    `join_s` bounds how long the ranks may take to meet, `wait_s` any wait after that: a last
    resort, since whoever watches decides sooner. `data_dir` is where measured tables lie, or empty.
    `device` is the kind that ranks compute on: "cpu", or "cuda" for a device of its own each.
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
    device: str = "cpu"
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
    def place(self) -> torch.device:
        """Where this rank's tensors are: of the devices that it sees, the one with its number."""
        return rank_place(self.device, self.rank)

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


def rank_place(device: str, rank: int) -> torch.device:
    """The place of a rank among devices of a kind."""
    return torch.device(device) if device == "cpu" else torch.device(device, rank)
