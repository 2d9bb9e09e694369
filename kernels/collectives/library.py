"""The libraries' transports: their own collectives, and a `Link` over their messages.

gloo between processors; NCCL, or RCCL under its name, between devices. Unverified on devices:
no machine with several has run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from kernels.collectives.board import Board
from kernels.collectives.calls import Reduction
from kernels.collectives.errors import CollectiveError, GroupBroken, RankLost, RankStalled
from kernels.collectives.group import Group
from kernels.collectives.link import Message
from kernels.collectives.reduction import combine_into

_LOOPBACK = "127.0.0.1"
# A socket breaks a moment before the kernel reports the process that held it as ended.
_SETTLE_S = 0.3
_REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Library:
    """One process group of the library, owned by one communicator; no global state.

    After an error the library's group cannot be used again, and neither can the communicator.
    Raises: RankLost or RankStalled in place of the library's errors, which name no rank.
    """

    def __init__(self, board: Board, store: dist.Store, name: Literal["gloo", "nccl"]) -> None:
        self._board = board
        make = {"gloo": _make_gloo, "nccl": _make_nccl}[name]
        with self._named("connecting"):
            self._library = make(board.group, dist.PrefixStore(name, store))

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
        with self._named("message"):
            starts: list[Callable[[], dist.Work]] = []
            if incoming and len(incoming.values_N):
                starts.append(partial(self._library.recv, [incoming.values_N], incoming.rank, 0))
            if outgoing and len(outgoing.values_N):
                starts.append(partial(self._library.send, [outgoing.values_N], outgoing.rank, 0))
            if outgoing and sends_first(self.rank, outgoing.rank):
                starts.reverse()
            works = [start() for start in starts]
            for work in works:
                work.wait()

    def all_reduce(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """The library's own: its order of addition depends on the place of an element."""
        options: Any = dist.AllreduceOptions()
        options.reduceOp = _REDUCE_OPS[reduction]
        self._run("all_reduce", lambda: self._library.allreduce([x_N], options))

    def gather_sum(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """Exact: the library gathers everything and every rank adds all in order."""
        parts = [torch.empty_like(x_N) for _ in range(self.size)]
        self._run("all_gather", lambda: self._library.allgather([parts], [x_N]))
        combine_into(x_N, parts, reduction)

    def broadcast(self, x_N: torch.Tensor, root: int) -> None:
        """The library's own."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._run("broadcast", lambda: self._library.broadcast([x_N], options))

    def all_gather(self, parts: Sequence[torch.Tensor]) -> None:
        """The library's own where all parts are alike; it knows no other."""
        mine = parts[self.rank].clone()
        self._run("all_gather", lambda: self._library.allgather([list(parts)], [mine]))

    def all_to_all(
        self, outgoing: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
    ) -> None:
        """The library's own, any sizes."""
        sent_N = torch.cat(list(outgoing))
        sizes_in = [len(part_N) for part_N in incoming]
        received_N = sent_N.new_empty(sum(sizes_in))
        options = dist.AllToAllOptions()
        sizes_out = [len(part_N) for part_N in outgoing]
        self._run(
            "all_to_all",
            lambda: self._library.alltoall_base(received_N, sent_N, sizes_in, sizes_out, options),
        )
        for part_N, arrived_N in zip(incoming, received_N.split(sizes_in), strict=True):
            part_N.copy_(arrived_N)

    def limit_waits(self, timeout_s: float) -> None:
        """Change how long a wait may last."""
        self._library.set_timeout(timedelta(seconds=timeout_s))

    def close(self) -> None:
        """Close the library's sockets."""
        self._library.shutdown()

    def _run(self, doing: str, start: Callable[[], dist.Work]) -> None:
        with self._named(doing):
            start().wait()

    def _named(self, doing: str) -> AbstractContextManager[None]:
        return _naming(self._board, doing)


def sends_first(rank: int, to: int) -> bool:
    """Whether a rank's message to another is issued before the one that it expects.

    A device runs what is issued to one stream in order, and a receive there blocks what comes
    behind it. Every circle of senders has ranks that send up and ranks that send down: where some
    send first and some receive first, none waits for itself.
    """
    return rank < to


def unmet_library(name: str) -> str | None:
    """Why this build of torch, or this machine, cannot use a library; None where it can."""
    if name == "gloo":
        return None if dist.is_gloo_available() else "this build of torch has no gloo"
    if not dist.is_nccl_available():
        return "this build of torch has no NCCL or RCCL"
    return None if torch.cuda.is_available() else "torch sees no device"


def _make_gloo(group: Group, store: dist.Store) -> Any:  # noqa: ANN401 - stubs know little of it
    library: Any = dist.ProcessGroupGloo
    options = library._Options()
    where = {"interface": group.interface} if group.interface else {"hostname": _LOOPBACK}
    options._devices = [library.create_device(**where)]
    options._timeout = timedelta(seconds=group.timeout_s)
    return library(store, group.rank, group.size, options)


def _make_nccl(group: Group, store: dist.Store) -> Any:  # noqa: ANN401 - stubs know little of it
    library: Any = dist.ProcessGroupNCCL
    options = library.Options()
    options._timeout = timedelta(seconds=group.timeout_s)
    return library(store, group.rank, group.size, options)


@contextmanager
def _naming(board: Board, doing: str):  # noqa: ANN202 - contextmanager
    """Turn the library's errors into ours."""
    begin_s = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        found = _diagnosis(board, doing, time.monotonic() - begin_s, error)
        board.mark_broken(found)
        raise found from error


def _diagnosis(board: Board, doing: str, waited_s: float, error: RuntimeError) -> CollectiveError:
    """Which rank is to blame: one whose process has ended, has been stopped, or is behind."""
    group = board.group
    until_s = time.monotonic() + _SETTLE_S
    while not (lost := board.lost_ranks()) and time.monotonic() < until_s:
        time.sleep(0.01)
    renew = f"Found the group anew with epoch {group.epoch + 1}"
    if lost:
        names = ", ".join(f"rank {r}" for r in lost)
        return RankLost(f"{doing}: {names} is gone, rank {group.rank} waited for it. {renew}", lost)
    broken = board.gave_up()
    if broken:
        blamed = broken[1]
        text = f"{doing}: rank {broken[0]} gave up because of rank {blamed}. {renew}"
        return GroupBroken(text, (blamed,))
    stopped = tuple(r for r in group.others if _is_stopped(board.pid(r)))
    late = stopped or group.others
    names = ", ".join(f"rank {r}" for r in late) + (" is stopped" if stopped else "")
    return RankStalled(
        f"{doing}: rank {group.rank} waited {waited_s:.1f} s of {board.timeout_s} s for {names}. "
        f"{renew}. The library says: {str(error).splitlines()[0]}",
        late,
    )


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, as the kernel tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
