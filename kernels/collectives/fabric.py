"""What a group has to talk through: its board, and the transports it opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from kernels.collectives.board import Board
from kernels.collectives.group import Group
from kernels.collectives.segment import unmet_memory_order

if TYPE_CHECKING:
    import torch.distributed as dist

    from kernels.collectives.adapters.workspaces import Workspaces
    from kernels.collectives.channel import SharedMemoryLink
    from kernels.collectives.library import Library
    from kernels.collectives.push.pushes import Pushes
    from kernels.collectives.slots import Slots
    from kernels.collectives.tcp import SocketLink

Transport = Literal["shm", "gloo", "tcp", "nccl", "peer", "push", "flashinfer", "staged"]
# What is opened unless something else is asked for.
TRANSPORTS: tuple[Transport, ...] = ("shm", "gloo")
DEVICE_TRANSPORTS: tuple[Transport, ...] = ("nccl", "peer", "push", "flashinfer", "staged")
# Whose tensors a transport moves, in torch's words.
DEVICES: Mapping[Transport, str] = {
    "shm": "cpu",
    "gloo": "cpu",
    "tcp": "cpu",
    "nccl": "cuda",
    "peer": "cuda",
    "push": "cuda",
    "flashinfer": "cuda",
    "staged": "cuda",
}
EVIDENCE: Mapping[Transport, str] = {
    "shm": "checked between processes",
    "gloo": "checked between processes",
    "tcp": "checked between processes",
    "nccl": "unverified: no machine with several devices has run it",
    "peer": "unverified on devices; its rounds over slots are checked between processes",
    "push": "unverified on devices; its kernel is interpreted between processes, and compiled",
    "flashinfer": "unverified: bound to its sources, never run here; it waits without a time limit",
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
    pushes: Pushes | None
    workspaces: Workspaces | None
    channel: SharedMemoryLink | None
    sockets: SocketLink | None
    libraries: Mapping[Transport, Library]

    @property
    def device(self) -> str:
        """Whose tensors the first transport moves, in torch's words: all where one kind is open."""
        return DEVICES[self.transports[0]]

    def limit_waits(self, timeout_s: float) -> None:
        """Change how long any wait may last; all ranks alike."""
        self.board.limit_waits(timeout_s)
        if self.pushes:
            self.pushes.limit_waits(timeout_s)
        for library in self.libraries.values():
            library.limit_waits(timeout_s)

    def close(self) -> None:
        """Give sockets and descriptors back."""
        if self.workspaces:
            self.workspaces.close()
        for library in self.libraries.values():
            library.close()
        if self.sockets:
            self.sockets.close()
        self.board.close()


def openable(
    transports: Sequence[Transport],
) -> tuple[tuple[Transport, ...], dict[str, str]]:
    """Those that this process can open, and why it cannot open the others."""
    reasons = {name: unmet_transport(name) for name in transports}
    is_open: list[Transport] = [name for name in transports if reasons[name] is None]
    return tuple(is_open), {name: reason for name, reason in reasons.items() if reason}


def open_fabric(
    group: Group,
    store: dist.Store,
    transports: tuple[Transport, ...],
    slot_bytes: int,
    report: Callable[[str], None] = lambda _: None,
) -> Fabric:
    """Open the transports on every rank, in the same order; `report` names each before.

    Raises:
        ValueError: a transport that there is not, or that this machine cannot have, and why.
        RankStalled, StaleEpoch, CollectiveError: as their own docstrings say.
    """
    _check(transports)
    board = Board(group, store)
    slots = peer_slots = pushes = workspaces = channel = sockets = None
    if {"shm", "staged"} & set(transports):
        slots = _open_slots(board, store, slot_bytes)
    if "peer" in transports:
        report("peer")
        peer_slots = _open_peer_slots(group, store, slot_bytes)
    if "push" in transports:
        report("push")
        pushes = _open_pushes(group, store, slot_bytes)
    if "flashinfer" in transports:
        report("flashinfer")
        workspaces = _open_workspaces(group, store, slot_bytes)
    if "shm" in transports:
        from kernels.collectives.channel import SharedMemoryLink

        channel = SharedMemoryLink(board, store)
    if "tcp" in transports:
        from kernels.collectives.tcp import SocketLink

        sockets = SocketLink(board, store)
    libraries: dict[Transport, Library] = {
        name: _open_library(board, store, name, report) for name in transports if name in _LIBRARIES
    }
    return Fabric(
        group=group,
        board=board,
        transports=transports,
        slots=slots,
        peer_slots=peer_slots,
        pushes=pushes,
        workspaces=workspaces,
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


def _open_pushes(group: Group, store: dist.Store, slot_bytes: int) -> Pushes:
    from kernels.collectives.push.device import DeviceInboxes
    from kernels.collectives.push.launch import launch
    from kernels.collectives.push.pushes import Pushes

    return Pushes(DeviceInboxes(group, store, slot_bytes=slot_bytes), launch)


def _open_workspaces(group: Group, store: dist.Store, slot_bytes: int) -> Workspaces:
    from kernels.collectives.adapters.workspaces import open_workspaces

    return open_workspaces(group, store, slot_bytes=slot_bytes)


_LIBRARIES = ("gloo", "nccl")


def _open_library(
    board: Board, store: dist.Store, name: Transport, report: Callable[[str], None]
) -> Library:
    from kernels.collectives.library import Library

    report(name)
    assert name in ("gloo", "nccl")
    return Library(board, store, name)


def unmet_transport(name: Transport) -> str | None:
    """Why this process cannot open a transport; None where it can."""
    if name in _LIBRARIES:
        from kernels.collectives.library import unmet_library

        return unmet_library(name)
    if name == "staged":
        return None if torch.cuda.is_available() else "torch sees no device"
    if name == "peer":
        from kernels.collectives.peer_memory import unmet_peers

        return unmet_peers()
    if name == "push":
        from kernels.collectives.push.device import unmet_push

        return unmet_push()
    if name == "flashinfer":
        from kernels.collectives.adapters.workspaces import unmet_workspaces

        return unmet_workspaces()
    return None


def _check(transports: tuple[Transport, ...]) -> None:
    unknown = set(transports) - set(DEVICES)
    if unknown or not transports:
        raise ValueError(f"transports {transports}: one or more of {', '.join(DEVICES)}")
    reasons: dict[str, str | None] = {name: unmet_transport(name) for name in transports}
    reasons["the board that ranks watch each other on"] = unmet_memory_order()
    unmet = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    if unmet:
        raise ValueError(f"transports {transports} cannot be opened: {'; '.join(unmet)}")
