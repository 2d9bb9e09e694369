"""A follower's process: meets the others, loads its part, carries out commands."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from kernels.collectives.choice import SEED, Knowledge
from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.errors import CollectiveError
from kernels.collectives.tuning.place import knowledge_for_this_machine
from kernels.ledger import Ledger
from workers.parent import die_with_parent
from workers.ranks.follower import Execute, follow
from workers.ranks.heartbeat import Beats, Phase, Row
from workers.ranks.mailbox import MailReader
from workers.ranks.order import RankOrder

_logger = logging.getLogger(__name__)
EXIT_FAILED = 1
# Another rank was at fault: who reads exit codes looks for that one.
EXIT_SURVIVOR = 75

Load = Callable[[RankOrder, HostCommunicator], Execute]


class LeaderGone(CollectiveError):
    """The process that gives the commands has ended."""


def run_rank(order: RankOrder, load_engine: Load) -> int:
    """Be one follower for one epoch; the exit code.

    0 told to stop, 1 failed by itself, 75 ended because another rank did.
    """
    die_with_parent(order.parent_pid)
    # Rank 0 decides when to stop; an interrupt from a terminal reaches the whole tree at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    row = Beats(order.beat_descriptor, order.num_ranks).row(order.rank, order.epoch)
    try:
        _serve(order, row, load_engine)
    except CollectiveError as error:
        row.enter(Phase.FAILED, f"{type(error).__name__}: {error}")
        _logger.warning("rank %d ends: %s", order.rank, error)
        return EXIT_SURVIVOR
    except Exception as error:
        row.enter(Phase.FAILED, f"{type(error).__name__}: {error}")
        _logger.exception("rank %d failed", order.rank)
        return EXIT_FAILED
    return 0


def _serve(order: RankOrder, row: Row, load_engine: Load) -> None:
    communicator = join(
        order.group,
        knowledge=knowledge_of(order.data_dir, order.num_ranks),
        place=order.place,
        on_device=knowledge_of(order.data_dir, order.num_ranks, device=order.device),
    )
    communicator.fabric.limit_waits(order.wait_s)
    row.enter(Phase.LOADING, "loading")
    execute = load_engine(order, communicator)
    reader = MailReader(order.mail_descriptor, order.mailbox, order.rank - 1, order.bell_descriptor)

    def look_around() -> None:
        if os.getppid() != order.parent_pid:
            raise LeaderGone(f"process {order.parent_pid}, which gave the commands, is gone", (0,))

    follow(reader, row, order.epoch, execute, look_around)
    communicator.close()


def knowledge_of(
    data_dir: str, num_ranks: int, ledger: Ledger | None = None, device: str = "cpu"
) -> Knowledge:
    """What this machine's table for a kind of device says, or the seeds; all ranks read it."""
    if not data_dir:
        return SEED
    return knowledge_for_this_machine(Path(data_dir), num_ranks, ledger=ledger, device=device)
