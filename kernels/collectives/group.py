"""Who talks to whom: a rank's place in its group and where the group meets."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import torch.distributed as dist

from kernels.collectives.errors import CollectiveError, StaleEpoch

_EPOCH = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One rank's view of a group of ranks on one host.

    `rendezvous` is `file:///path` of a file that all ranks see, or `tcp://host:port` where rank 0
    listens. `epoch` counts the foundings of the group: after a failure it is founded again with
    the next number, and ranks of an older one are refused. `interface` binds
    sockets to a network interface; loopback without it. `islands` are runs of ranks that share a
    switch or a socket, in order; one island without them. `rate_bytes_s` slows every message
    between ranks to that rate, `latency_s` delays it: a slow link for tests and calibration,
    which only algorithms made of messages keep to.
    Units: seconds; bytes per second of one rank in one direction.
    Raises: ValueError for a rank, size, epoch, time limit or islands out of bounds.
    """

    rank: int
    size: int
    rendezvous: str
    epoch: int = 0
    timeout_s: float = 30.0
    interface: str = ""
    islands: tuple[tuple[int, ...], ...] = ()
    rate_bytes_s: float = math.inf
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of a group of {self.size}: must be below it")
        if self.epoch < 0 or self.timeout_s <= 0:
            raise ValueError(f"epoch {self.epoch} and timeout {self.timeout_s} s: not negative, >0")
        if self.rate_bytes_s <= 0 or self.latency_s < 0:
            raise ValueError(f"rate {self.rate_bytes_s} B/s must be above 0, latency at least 0")
        if urlsplit(self.rendezvous).scheme not in ("file", "tcp"):
            raise ValueError(f"rendezvous {self.rendezvous!r}: use file:///path or tcp://host:port")
        named = [rank for island in self.islands for rank in island]
        if self.islands and named != list(range(self.size)):
            raise ValueError(
                f"islands {self.islands} must be runs of ranks that name 0 to {self.size - 1} "
                "once and in order: number the ranks by their place on the machine"
            )

    @property
    def is_limited(self) -> bool:
        """Whether messages are slowed."""
        return self.rate_bytes_s < math.inf or self.latency_s > 0

    @property
    def others(self) -> tuple[int, ...]:
        """Every rank but this one."""
        return tuple(rank for rank in range(self.size) if rank != self.rank)


def store_of_epoch(group: Group, store: dist.Store) -> dist.Store:
    """The part of the group's store that belongs to its epoch.

    Raises:
        StaleEpoch: the group has been founded with a later epoch already.
    """
    newest = newest_epoch(store, group.epoch)
    if newest > group.epoch:
        raise StaleEpoch(
            f"rank {group.rank} belongs to epoch {group.epoch}, the group at {group.rendezvous} "
            f"is at epoch {newest}: drop this rank's results and join with that epoch",
            (group.rank,),
        )
    prefixed = dist.PrefixStore(f"epoch-{group.epoch}", store)
    prefixed.set_timeout(timedelta(seconds=group.timeout_s))
    return prefixed


def newest_epoch(store: dist.Store, epoch: int) -> int:
    """The newest epoch that the store has seen, this one included and told to it."""
    seen = int(store.get(_EPOCH)) if store.check([_EPOCH]) else -1
    if epoch > seen:
        store.set(_EPOCH, str(epoch))
    return max(seen, epoch)


def open_root_store(group: Group) -> dist.Store:
    """The store of all epochs of the group.

    Raises:
        CollectiveError: nobody answers at the rendezvous within the time limit.
    """
    parts = urlsplit(group.rendezvous)
    if parts.scheme == "file":
        folder = Path(parts.path).parent
        if not os.access(folder, os.W_OK):
            raise CollectiveError(f"rendezvous {group.rendezvous}: {folder} cannot be written")
        return dist.FileStore(parts.path, -1)
    try:
        return dist.TCPStore(
            parts.hostname or "127.0.0.1",
            parts.port or 0,
            is_master=group.rank == 0,
            timeout=timedelta(seconds=group.timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise CollectiveError(
            f"rank {group.rank}: nobody answers at {group.rendezvous} within "
            f"{group.timeout_s} s: {error}"
        ) from error
