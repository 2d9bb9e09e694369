"""One founding of a rank group: the memory of its epoch and the processes of its followers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workers.ranks.child import EXIT_SURVIVOR
from workers.ranks.heartbeat import Beats, Phase
from workers.ranks.leader import Leader
from workers.ranks.mailbox import MailboxShape, MailWriter, create_memory
from workers.ranks.order import RankOrder
from workers.ranks.process import RankProcess, any_ended, end_all
from workers.ranks.verdict import Verdict
from workers.ranks.watch import Limits, Sight, StallWatch, doing


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What a group is made of.

    `command` starts a follower, which gets its order as last argument. `folder` gets a folder for
    the file at which the ranks meet; measured tables lie in `data_dir`. `device` is the kind that
    ranks compute on. `join_s` bounds meeting, `wait_s` every wait between ranks afterwards.
    """

    num_ranks: int
    command: tuple[str, ...]
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data_dir: str = ""
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    join_s: float = 60.0
    wait_s: float = 600.0

    @property
    def rendezvous(self) -> str:
        """Where the ranks of all epochs meet; each epoch has a part of its own there."""
        return f"file://{self.folder / 'store'}"


class Founding:
    """The ranks of one epoch. Made, watched and ended by one thread; others only read.

    `exchanges` tells each rank's steps on the group's board once the group has met.
    """

    def __init__(self, spec: GroupSpec, epoch: int, check: Callable[[int], None]) -> None:
        """Start the followers; `check` raises once the epoch it is given is over.

        Raises: OSError when a process cannot be started.
        """
        self.spec, self.epoch = spec, epoch
        self.exchanges: Callable[[], Sequence[int]] = lambda: [0] * spec.num_ranks
        shape = MailboxShape(num_readers=spec.num_ranks - 1)
        mail = create_memory(shape.size_bytes, f"mail-{epoch}")
        beat = create_memory(Beats.size_bytes(spec.num_ranks), f"beat-{epoch}")
        self._bells = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(spec.num_ranks - 1)]
        self._beats = Beats(beat, spec.num_ranks)
        row = self._beats.row(0, epoch)
        self.leader = Leader(
            MailWriter(mail, shape, self._bells),
            row,
            epoch,
            timeout_s=spec.limits.unpredicted_s,
            look_around=lambda: check(epoch),
        )
        self.order = RankOrder(
            rank=0,
            num_ranks=spec.num_ranks,
            epoch=epoch,
            rendezvous=spec.rendezvous,
            parent_pid=os.getpid(),
            mail_descriptor=mail,
            bell_descriptor=-1,
            beat_descriptor=beat,
            join_s=spec.join_s,
            wait_s=spec.wait_s,
            data_dir=spec.data_dir,
            device=spec.device,
            config=spec.config,
        )
        self.processes: list[RankProcess] = []
        try:
            for rank in range(1, spec.num_ranks):
                self.processes.append(RankProcess(spec.command, self._order_of(rank)))
        except OSError:
            end_all(self.processes, 0.0)
            raise
        finally:
            # The mappings stay, and the children have their own.
            os.close(mail)
            os.close(beat)
        self._watch = StallWatch(spec.limits)

    @property
    def has_arrived(self) -> bool:
        """Whether every follower is there to be met."""
        return self._are_all({Phase.ARRIVED, Phase.LOADING, Phase.IDLE, Phase.STEPPING})

    @property
    def is_loaded(self) -> bool:
        """Whether every follower waits for commands."""
        return self._are_all({Phase.IDLE, Phase.STEPPING})

    def watch(self, timeout_s: float, window_s: float | None) -> Verdict | None:
        """Wait so long at most for somebody's end, then judge; the verdict if there is one.

        `window_s` bounds a declared warm-up.
        """
        if any_ended(self.processes, timeout_s):
            return self._of_the_dead()
        leader = self.leader
        return self._watch.look(
            Sight(
                now_s=time.monotonic(),
                beats=self._beats.all(),
                exchanges=self.exchanges(),
                num_sent=leader.number,
                expected_s=leader.expected_s,
                window_s=window_s,
            )
        )

    def disagreement(self, ranks: Sequence[int], detail: str) -> Verdict:
        """The verdict for what the leader's own exchange found."""
        rank = next((r for r in ranks if r), 1)
        return self._verdict(rank, "disagreed", detail)

    def end(self, blamed: int | None) -> None:
        """End all followers: the one to blame at once, the others once they have had time."""
        for process in self.processes:
            if process.rank == blamed:
                process.kill()
        end_all(self.processes, self.spec.limits.leave_s)
        for bell in self._bells:
            os.close(bell)
        self._bells.clear()

    def describe(self) -> list[dict[str, Any]]:
        """Each rank's process and state, plain values."""
        leader = {"rank": 0, "pid": os.getpid(), "phase": "leading"}
        return [leader | {"commands": self.leader.number}] + [
            {"rank": b.rank, "pid": b.pid, "phase": b.phase.name.lower(), "commands": b.done}
            for b in self._beats.all()[1:]
        ]

    def _order_of(self, rank: int) -> RankOrder:
        return replace(self.order, rank=rank, bell_descriptor=self._bells[rank - 1])

    def _are_all(self, phases: set[Phase]) -> bool:
        ranks = range(1, self.spec.num_ranks)
        return all(self._beats.read(rank).phase in phases for rank in ranks)

    def _of_the_dead(self) -> Verdict:
        """A killed one before one that failed, and that before those that only noticed."""
        codes = [(process, process.code) for process in self.processes]
        ended = [(process, code) for process, code in codes if code is not None]
        first, code = min(ended, key=lambda one: _guilt(one[1]))
        said = self._beats.read(first.rank).text
        if code < 0:
            return self._verdict(first.rank, "dead", f"ended by signal {-code}")
        return self._verdict(first.rank, "failed", f"exit code {code}, it said: {said}")

    def _verdict(self, rank: int, kind: str, detail: str) -> Verdict:
        assert kind in ("dead", "failed", "disagreed")
        beat, leader = self._beats.read(rank), self.leader
        return Verdict(
            rank=rank,
            pid=self.processes[rank - 1].pid,
            epoch=self.epoch,
            kind=kind,
            doing=doing(beat, leader.number, self.exchanges()[rank]),
            elapsed_s=self._watch.frozen_s(rank),
            expected_s=leader.expected_s,
            detail=detail,
        )


def _guilt(code: int) -> int:
    """Smaller is worse."""
    if code < 0:
        return 0
    return 2 if code == EXIT_SURVIVOR else 1
