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

Transport = Literal["shm", "gloo", "tcp", "nccl", "peer", "staged"]
# What is opened unless something else is asked for.
TRANSPORTS: tuple[Transport, ...] = ("shm", "gloo")
DEVICE_TRANSPORTS: tuple[Transport, ...] = ("nccl", "peer", "staged")
# Whose tensors a transport moves, in torch's words.
DEVICES: Mapping[Transport, str] = {
    "shm": "cpu",
    "gloo": "cpu",
    "tcp": "cpu",
    "nccl": "cuda",
    "peer": "cuda",
    "staged": "cuda",
}
EVIDENCE: Mapping[Transport, str] = {
    "shm": "checked between processes",
    "gloo": "checked between processes",
    "tcp": "checked between processes",
    "nccl": "unverified: no machine with several devices has run it",
    "peer": "unverified on devices; its rounds over slots are checked between processes",
    "staged": "unverified on devices; its exchange in host memory is checked between processes",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fabric:
    """The open transports of one rank. `staged` copies device tensors to the host's slots."""

    group: Group
    board: Board
    transports: tuple[Transport, ...]
    slots: Slots | None
    peer_slots: Slots | None
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
    slots = peer_slots = channel = sockets = None
    if {"shm", "staged"} & set(transports):
        slots = _open_slots(board, store, slot_bytes)
    if "peer" in transports:
        peer_slots = _open_peer_slots(group, store, slot_bytes)
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
        peer_slots=peer_slots,
        channel=channel,
        sockets=sockets,
        libraries=libraries,
    )


def _open_slots(board: Board, store: dist.Store, slot_bytes: int) -> Slots:
    from kernels.collectives.slot_memory import HostMemory
    from kernels.collectives.slots import NUM_TURNS, Slots

    return Slots(HostMemory(board, store, num_turns=NUM_TURNS, slot_bytes=slot_bytes))


def _open_peer_slots(group: Group, store: dist.Store, slot_bytes: int) -> Slots:
    from kernels.collectives.peer_memory import PeerMemory
    from kernels.collectives.slots import NUM_TURNS, Slots

    return Slots(PeerMemory(group, store, num_turns=NUM_TURNS, slot_bytes=slot_bytes))


_LIBRARIES = ("gloo", "nccl")


def _open_library(board: Board, store: dist.Store, name: Transport) -> Library:
    from kernels.collectives.library import Library

    assert name in ("gloo", "nccl")
    return Library(board, store, name)


def _check(transports: tuple[Transport, ...]) -> None:
    from kernels.collectives.library import unmet_library
    from kernels.collectives.peer_memory import unmet_peers

    unknown = set(transports) - set(DEVICES)
    if unknown or not transports:
        raise ValueError(f"transports {transports}: one or more of {', '.join(DEVICES)}")
    reasons: dict[str, str | None] = {
        name: unmet_library(name) for name in transports if name in _LIBRARIES
    }
    if "peer" in transports:
        reasons["peer"] = unmet_peers()
    reasons["the board that ranks watch each other on"] = unmet_memory_order()
    unmet = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    if unmet:
        raise ValueError(f"transports {transports} cannot be opened: {'; '.join(unmet)}")
