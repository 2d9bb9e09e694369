"""What a group has to talk through: its board, and the transports it opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kernels.collectives.board import Board
from kernels.collectives.group import Group
from kernels.collectives.segment import unmet_memory_order

if TYPE_CHECKING:
    import torch.distributed as dist

    from kernels.collectives.channel import SharedMemoryLink
    from kernels.collectives.library import Library
    from kernels.collectives.slots import Slots
    from kernels.collectives.tcp import SocketLink

Transport = Literal["shm", "gloo", "tcp", "nccl", "staged"]
# What is opened unless something else is asked for.
TRANSPORTS: tuple[Transport, ...] = ("shm", "gloo")
DEVICE_TRANSPORTS: tuple[Transport, ...] = ("nccl", "staged")
# Whose tensors a transport moves, in torch's words.
DEVICES: Mapping[Transport, str] = {
    "shm": "cpu",
    "gloo": "cpu",
    "tcp": "cpu",
    "nccl": "cuda",
    "staged": "cuda",
}
EVIDENCE: Mapping[Transport, str] = {
    "shm": "checked between processes",
    "gloo": "checked between processes",
    "tcp": "checked between processes",
    "nccl": "unverified: no machine with several devices has run it",
    "staged": "unverified on devices; its exchange in host memory is checked between processes",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fabric:
    """The open transports of one rank. `staged` copies device tensors to the host's slots."""

    group: Group
    board: Board
    transports: tuple[Transport, ...]
    slots: Slots | None
    channel: SharedMemoryLink | None
    sockets: SocketLink | None
    libraries: Mapping[Transport, Library]

    def limit_waits(self, timeout_s: float) -> None:
        """Change how long any wait may last; all ranks alike."""
        self.board.limit_waits(timeout_s)
        for library in self.libraries.values():
            library.limit_waits(timeout_s)

    def close(self) -> None:
        """Give sockets and descriptors back."""
        for library in self.libraries.values():
            library.close()
        if self.sockets:
            self.sockets.close()
        self.board.close()


def open_fabric(
    group: Group, store: dist.Store, transports: tuple[Transport, ...], slot_bytes: int
) -> Fabric:
    """Open the transports on every rank, in the same order.

    Raises:
        ValueError: a transport that there is not, or that this machine cannot have, and why.
        RankStalled, StaleEpoch, CollectiveError: as their own docstrings say.
    """
    _check(transports)
    board = Board(group, store)
    slots = channel = sockets = None
    if {"shm", "staged"} & set(transports):
        from kernels.collectives.slots import Slots

        slots = Slots(board, store, slot_bytes)
    if "shm" in transports:
        from kernels.collectives.channel import SharedMemoryLink

        channel = SharedMemoryLink(board, store)
    if "tcp" in transports:
        from kernels.collectives.tcp import SocketLink

        sockets = SocketLink(board, store)
    libraries: dict[Transport, Library] = {
        name: _open_library(board, store, name) for name in transports if name in _LIBRARIES
    }
    return Fabric(
        group=group,
        board=board,
        transports=transports,
        slots=slots,
        channel=channel,
        sockets=sockets,
        libraries=libraries,
    )


_LIBRARIES = ("gloo", "nccl")


def _open_library(board: Board, store: dist.Store, name: Transport) -> Library:
    from kernels.collectives.library import Library

    assert name in ("gloo", "nccl")
    return Library(board, store, name)


def _check(transports: tuple[Transport, ...]) -> None:
    from kernels.collectives.library import unmet_library

    unknown = set(transports) - set(DEVICES)
    if unknown or not transports:
        raise ValueError(f"transports {transports}: one or more of {', '.join(DEVICES)}")
    reasons = {name: unmet_library(name) for name in transports if name in _LIBRARIES}
    reasons["the board that ranks watch each other on"] = unmet_memory_order()
    unmet = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    if unmet:
        raise ValueError(f"transports {transports} cannot be opened: {'; '.join(unmet)}")
