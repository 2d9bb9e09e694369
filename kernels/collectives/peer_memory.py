"""Slots in the memory of devices that reach each other: copies go over the bus by copy engines.

Every rank maps the slots of all others (torch's symmetric memory), so that a copy from a peer's
slot is one transfer between devices and none through the host. A step is a barrier on the device,
in the order of its stream: the host waits for nothing.
Unverified on devices. What runs over the slots is that of the host's memory, and checked there.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist

from kernels.collectives.board import meet
from kernels.collectives.group import Group


def unmet_peers() -> str | None:
    """Why the devices of this process cannot map each other's memory; None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no device"
    own, count = torch.cuda.current_device(), torch.cuda.device_count()
    deaf = [i for i in range(count) if i != own and not torch.cuda.can_device_access_peer(own, i)]
    if deaf:
        named = ", ".join(map(str, deaf))
        return f"device {own} has no access to the memory of devices {named}: takes staged"
    return None


class PeerMemory:
    """See `kernels.collectives.slot_memory.SlotMemory`."""

    def __init__(self, group: Group, store: dist.Store, *, num_turns: int, slot_bytes: int) -> None:
        """Map them on every rank, each on its current device. Raises: RankStalled."""
        self.group = group
        # The handle's mappings live as long as what was allocated.
        self._own, self._handle = map_peers(group, store, "slots", num_turns * slot_bytes)
        self.slots = [
            [
                self._handle.get_buffer(rank, (slot_bytes,), torch.uint8, turn * slot_bytes)
                for turn in range(num_turns)
            ]
            for rank in range(group.size)
        ]
        meet(group, store, "peer-slots")

    def step(self, doing: str) -> None:
        """See `SlotMemory`. `doing` is told by the board's agreement before an operation."""
        del doing
        self._handle.barrier(channel=0, timeout_ms=int(1000 * self.group.timeout_s))


def map_peers(
    group: Group, store: dist.Store, purpose: str, size_bytes: int
) -> tuple[torch.Tensor, Any]:
    """Memory of the current device that all ranks map, uint8, and torch's handle of the mappings.

    Units: bytes. A collective call: every rank makes it, for the same purpose and size.
    """
    symmetric: Any = _symmetric_memory()
    name = f"{purpose} of {group.rendezvous} in epoch {group.epoch}"
    symmetric.set_group_info(name, group.rank, group.size, dist.PrefixStore(purpose, store))
    device = torch.device("cuda", torch.cuda.current_device())
    own = symmetric.empty_strided_p2p((size_bytes,), (1,), torch.uint8, device, name)
    return own, symmetric.rendezvous(own, name)


def _symmetric_memory() -> Any:  # noqa: ANN401 - a private class of torch, without stubs
    bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    return bindings._SymmetricMemory
