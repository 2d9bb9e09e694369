"""A rank's process: its communicators, and the functions that its parent sends it.

Run as `python -m kernels.calibration.seat SOCKET RANK`; the parent sets its environment.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch

from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.group import Group

SIZE = 2
_TIMEOUT_S = 30.0


class Seat:
    """One of two ranks of one thread. `memory` is for what a function wants to find again."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self._folder = rank, folder
        self.memory: dict[str, Any] = {}
        self._communicators: dict[float, HostCommunicator] = {}

    def communicator(self, rate_bytes_s: float) -> HostCommunicator:
        """The group over a link of this rate; both ranks ask in the same order."""
        if rate_bytes_s not in self._communicators:
            group = Group(
                rank=self.rank,
                size=SIZE,
                rendezvous=f"file://{self._folder / f'store-{len(self._communicators)}'}",
                timeout_s=_TIMEOUT_S,
                rate_bytes_s=rate_bytes_s,
            )
            self._communicators[rate_bytes_s] = join(group, transports=("shm",))
        return self._communicators[rate_bytes_s]

    def close(self) -> None:
        """Leave all groups."""
        for communicator in self._communicators.values():
            communicator.close()


def busy_s() -> float:
    """Seconds that all processors together have worked since the machine started."""
    user, nice, system, _idle, _wait, irq, soft, steal = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / 100


def cpu_s() -> float:
    """Processor seconds of this process."""
    return time.process_time()


def main(address: str, rank: int) -> None:
    """Serve functions until the parent hangs up."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    seat = Seat(rank, Path(address).parent)
    with Client(address, family="AF_UNIX") as pipe, torch.inference_mode():
        pipe.send(rank)
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                break
            pipe.send(_answer(function, seat, arguments))
    seat.close()


def _answer(function: Callable[..., object], seat: Seat, arguments: tuple[Any, ...]) -> object:
    try:
        return "value", function(seat, *arguments)
    except Exception:  # noqa: BLE001 - a child's boundary: the parent raises it
        return "error", traceback.format_exc()


if __name__ == "__main__":
    # By its importable name: what is pickled here must be found there.
    from kernels.calibration import seat as importable

    importable.main(sys.argv[1], int(sys.argv[2]))
