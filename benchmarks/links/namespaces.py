"""Two network namespaces joined by a pair of virtual devices, each slowed by a token bucket.

A namespace lives as long as a process in it: `cat` on a pipe that this process holds. When this
process ends, however it ends, the pipes close and nothing is left behind.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

TOOLS = ("unshare", "nsenter", "ip", "tc")
_TIMEOUT_S = 10
# A bucket must hold the largest segment of segmentation offload, or it cannot pass, and what
# accrues between two wake-ups, or the link never reaches its rate. It is what a message may send
# at once after a pause, so it stays small next to messages of megabytes.
_LEAST_BURST_BYTES = 64 << 10
_BURST_S = 0.5e-3
_LATENCY_MS = 50


class NoNamespaces(RuntimeError):
    """This machine, or this user, cannot make the link; the message says what refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLink:
    """A link between ranks 0 and 1. `pids` hold its namespaces open."""

    pids: tuple[int, int]

    def interface(self, rank: int) -> str:
        """The device of a rank."""
        return f"lwv{rank}"

    def address(self, rank: int) -> str:
        """The address of a rank's device."""
        return f"10.99.0.{rank + 1}"

    def prefix(self, rank: int) -> list[str]:
        """Words before a command that is to run in a rank's namespace."""
        return ["nsenter", f"--net=/proc/{self.pids[rank]}/ns/net", "--"]

    def limit(self, rate_bytes_s: float) -> None:
        """Slow both directions to a rate; bytes on the wire, headers included."""
        burst_bytes = max(_LEAST_BURST_BYTES, round(rate_bytes_s * _BURST_S))
        for rank in (0, 1):
            words = f"tc qdisc replace dev {self.interface(rank)} root tbf rate"
            bucket = f"{round(rate_bytes_s * 8)}bit burst {burst_bytes} latency {_LATENCY_MS}ms"
            _run([*self.prefix(rank), *words.split(), *bucket.split()])


@contextmanager
def kernel_link() -> Generator[KernelLink]:
    """The link, until the block ends.

    Raises: NoNamespaces naming the tool that is missing or the step that was refused.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise NoNamespaces(f"not installed: {', '.join(missing)}")
    holders = [_hold() for _ in range(2)]
    try:
        link = KernelLink(pids=(holders[0].pid, holders[1].pid))
        _join(link)
        yield link
    finally:
        for holder in holders:
            holder.communicate(timeout=_TIMEOUT_S)


def _hold() -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own that ends with its input."""
    holder = subprocess.Popen(
        ["unshare", "--net", "--", "sh", "-c", "echo ready && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        said = holder.communicate(timeout=_TIMEOUT_S)[1].decode().strip()
        raise NoNamespaces(f"unshare --net: {said}")
    return holder


def _join(link: KernelLink) -> None:
    first, second = link.prefix(0), link.prefix(1)
    peer = f"name {link.interface(1)} netns {link.pids[1]}"
    _run([*first, *f"ip link add {link.interface(0)} type veth peer {peer}".split()])
    for rank, prefix in ((0, first), (1, second)):
        device = link.interface(rank)
        _run([*prefix, *f"ip addr add {link.address(rank)}/24 dev {device}".split()])
        for name in ("lo", device):
            _run([*prefix, *f"ip link set {name} up".split()])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")
