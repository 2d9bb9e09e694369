"""Messages over plain sockets: both directions of a link at once, and a lost rank known at once.

The library's messages use one direction at a time for much of a swap; where the link is the
bottleneck that is half of its rate. Here a rank sends and receives in turns of what the kernel
takes, on one socket for each pair.
"""

from __future__ import annotations

import fcntl
import secrets
import select
import socket
import struct
import time

import torch
import torch.distributed as dist

from kernels.collectives.board import Board, meet
from kernels.collectives.link import Message

_LOOPBACK = "127.0.0.1"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_HELLO = struct.Struct("=16sq")
_POLL_MS = 10


class SocketLink:
    """A `Link` over sockets on the group's interface, or on loopback without one.

    Raises: RankLost as soon as the other end is gone, RankStalled at the time limit.
    """

    def __init__(self, board: Board, store: dist.Store) -> None:
        self._board = board
        self._sockets = _connect(board, store)
        for connection in self._sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._board.group.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._board.group.size

    def exchange(self, outgoing: Message | None, incoming: Message | None) -> None:
        """See `kernels.collectives.link.Link`."""
        out, into = _bytes(outgoing), _bytes(incoming)
        num_bytes = len(into)
        begin_s = time.monotonic()
        while out or into:
            out_before, into_before = len(out), len(into)
            if outgoing and out:
                out = out[self._send(outgoing.rank, out) :]
            if incoming and into:
                into = into[self._receive(incoming.rank, into) :]
                incoming.has_come(num_bytes - len(into))
            if (out_before, into_before) == (len(out), len(into)):
                self._wait(outgoing if out else None, incoming if into else None, begin_s)
            else:
                begin_s = time.monotonic()

    def close(self) -> None:
        """Close all sockets."""
        for connection in self._sockets.values():
            connection.close()

    def _send(self, rank: int, out: memoryview) -> int:
        try:
            return self._sockets[rank].send(out)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._board.lost(rank, f"sending: {error.strerror}") from error

    def _receive(self, rank: int, into: memoryview) -> int:
        try:
            count = self._sockets[rank].recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._board.lost(rank, f"receiving: {error.strerror}") from error
        if count == 0:
            raise self._board.lost(rank, "receiving: closed by its end")
        return count

    def _wait(self, sending: Message | None, receiving: Message | None, begin_s: float) -> None:
        """Until the kernel takes or has something for us."""
        poller = select.poll()
        wanted: dict[int, int] = {}
        for message, flag in ((sending, select.POLLOUT), (receiving, select.POLLIN)):
            if message is not None:
                descriptor = self._sockets[message.rank].fileno()
                wanted[descriptor] = wanted.get(descriptor, 0) | flag
        for descriptor, flags in wanted.items():
            poller.register(descriptor, flags)
        if not poller.poll(_POLL_MS):
            ranks = tuple(sorted({m.rank for m in (sending, receiving) if m}))
            self._board.look(ranks, "message", time.monotonic() - begin_s)


def _connect(board: Board, store: dist.Store) -> dict[int, socket.socket]:
    """A socket to every other rank; the lower rank listens, who calls shows the group's secret."""
    group = board.group
    listener = socket.create_server((_address(group.interface), 0), backlog=group.size)
    listener.settimeout(group.timeout_s)
    host, port = listener.getsockname()[:2]
    if group.rank == 0:
        store.set("tcp-secret", secrets.token_hex(8))
    store.set(f"tcp-{group.rank}", f"{host}:{port}")
    secret = store.get("tcp-secret")
    sockets: dict[int, socket.socket] = {}
    with listener:
        for rank in range(group.rank):
            other_host, _, other_port = store.get(f"tcp-{rank}").decode().rpartition(":")
            connection = socket.create_connection((other_host, int(other_port)), group.timeout_s)
            connection.sendall(_HELLO.pack(secret, group.rank))
            sockets[rank] = connection
        while len(sockets) < group.size - 1:
            connection, _ = listener.accept()
            connection.settimeout(group.timeout_s)
            shown, rank = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
            if shown != secret:
                connection.close()
                continue
            sockets[rank] = connection
    meet(group, store, "tcp")
    return sockets


def _address(interface: str) -> str:
    """The IPv4 address of an interface."""
    if not interface:
        return _LOOPBACK
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket.fileno(), _GET_ADDRESS, request)
    return socket.inet_ntoa(answer[20:24])


def _bytes(message: Message | None) -> memoryview:
    """A message's memory; empty for none."""
    if message is None or not len(message.values_N):
        return memoryview(b"")
    return message.values_N.view(torch.uint8).numpy().data
