"""What a link carries for plain sockets: the limit that transports are held against."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

PORT = 29600
_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 20


def connect(rank: int, address: str) -> socket.socket:
    """A socket between ranks 0 and 1; `address` is rank 0's, who listens."""
    if rank == 0:
        with socket.create_server((address, PORT)) as listener:
            listener.settimeout(_TIMEOUT_S)
            connection, _ = listener.accept()
    else:
        connection = _call(address)
    connection.settimeout(_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _call(address: str) -> socket.socket:
    until_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, PORT), _TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def both_ways_s(connection: socket.socket, num_bytes: int, meet: Callable[[], None]) -> float:
    """Seconds until so many bytes have gone out and come in; `meet` is where both begin."""
    payload = bytearray(num_bytes)
    sender = threading.Thread(target=connection.sendall, args=(payload,))
    meet()
    begin_s = time.perf_counter()
    sender.start()
    _drain(connection, num_bytes)
    sender.join()
    return time.perf_counter() - begin_s


def round_trip_s(connection: socket.socket, rank: int, meet: Callable[[], None]) -> float:
    """Seconds for eight bytes there and back."""
    meet()
    begin_s = time.perf_counter()
    if rank == 0:
        connection.sendall(b"pingping")
        _drain(connection, 8)
    else:
        _drain(connection, 8)
        connection.sendall(b"pongpong")
    return time.perf_counter() - begin_s


def _drain(connection: socket.socket, num_bytes: int) -> None:
    room = bytearray(min(num_bytes, _READ_BYTES))
    while num_bytes:
        count = connection.recv_into(room, min(num_bytes, len(room)))
        if not count:
            raise ConnectionError("the other end is gone")
        num_bytes -= count
