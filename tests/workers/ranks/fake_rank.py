"""A follower whose commands are small exchanges: `python fake_rank.py ORDER`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch

from workers.ranks.child import run_rank
from workers.ranks.order import RankOrder


def execute(rank: int, communicator, data: bytes) -> list[float]:
    """Sleep if this rank is told to, then add up what all ranks hold, `times` times.

    `lengths` gives a rank another shape.
    """
    command = json.loads(data)
    total = torch.zeros(1)
    for _ in range(command.get("times", 1)):
        time.sleep(command.get("sleep_s", {}).get(str(rank), 0.0))
        length = command.get("lengths", {}).get(str(rank), 4)
        total = communicator.all_reduce(torch.full((length,), float(rank + command["value"])))
    return total.tolist()


def load(order: RankOrder, communicator):
    """Take a while, or refuse, as the group's configuration says."""
    torch.set_num_threads(1)
    time.sleep(order.config.get("load_s", 0.0))
    if order.config.get("refuses_at_epoch") == order.epoch:
        raise ValueError(f"rank {order.rank} has no weights")
    log = order.config.get("log")

    def run(data: bytes) -> None:
        execute(order.rank, communicator, data)
        if log:
            with Path(log).open("a") as file:
                file.write(f"{order.epoch} {os.getpid()} {data.decode()}\n")

    return run


if __name__ == "__main__":
    sys.exit(run_rank(RankOrder.from_json(sys.argv[1]), load))
