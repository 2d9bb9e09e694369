"""When each command of a request reached Redis: the hops of the queue, seen from outside."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import dataclass

_LINE = re.compile(rb'\+?(\d+\.\d+) \[[^\]]*\] "([A-Za-z]+)" "?([^"]*)(.*)')
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One command. `at` is Redis's own clock: seconds since the epoch."""

    at: float
    verb: str
    key: str
    rest: bytes


class RedisWatch:
    """Listens to MONITOR of a Redis on a unix socket; what it takes is parsed afterwards."""

    def __init__(self, path: str) -> None:
        """Connect and listen. Raises: OSError."""
        self._received = bytearray()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_CONNECT_S)
        self._socket.connect(path)
        self._socket.sendall(b"MONITOR\r\n")
        self._socket.recv(16)
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._listen, name="redis-watch", daemon=True)
        self._thread.start()

    def stop(self) -> list[Seen]:
        """End, and tell what was seen, in order."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        return parsed(bytes(self._received))

    def _listen(self) -> None:
        while piece := self._socket.recv(1 << 16):
            self._received += piece


def parsed(text: bytes) -> list[Seen]:
    """The commands of MONITOR's lines, each with its first argument and the rest of its line."""
    found = (_LINE.match(line) for line in text.split(b"\r\n"))
    return [
        Seen(
            at=float(match[1]),
            verb=match[2].decode().upper(),
            key=match[3].decode(errors="replace"),
            rest=match[4],
        )
        for match in found
        if match is not None
    ]
