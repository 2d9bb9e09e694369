"""Inboxes in the memory of devices that map each other's, and which devices may have them.

Unverified on devices. What the kernel does with inboxes is run between processes over shared
memory in Triton's interpreter, and compiled for every family it is offered on.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from kernels.collectives.board import meet
from kernels.collectives.group import Group
from kernels.collectives.peer_memory import map_peers, unmet_peers
from kernels.collectives.push.layout import CHANNELS, Inbox
from kernels.collectives.streams import StreamOrder
from kernels.hardware.traits import DeviceTraits
from kernels.runtime import device_traits

# A look at a flag in the device's own memory takes about this long at the least, so a wait lasts
# its time limit or longer. Unverified.
_POLL_S = 0.5e-6


def unmet_push() -> str | None:
    """Why the devices of this process cannot push; None where they can be tried."""
    if reason := unmet_peers():
        return reason
    index = torch.cuda.current_device()
    return unmet_push_on(device_traits("cuda", index))


def unmet_push_on(traits: DeviceTraits) -> str | None:
    """Why a family of devices cannot push, by its traits."""
    if traits.backend != "cuda":
        return (
            f"{traits.name} ({traits.backend}): flags are raised by stores with release semantics "
            "at system scope, which are written in NVIDIA's assembly alone"
        )
    if traits.triton != "yes":
        return f"{traits.name}: Triton is {traits.triton}: {traits.note('triton')}"
    if not traits.custom_allreduce:
        return f"{traits.name}: {traits.note('custom_allreduce')}"
    if traits.symmetric_memory is False:
        return f"{traits.name}: {traits.note('symmetric_memory')}"
    return None


class DeviceInboxes:
    """See `kernels.collectives.push.memory.PushMemory`."""

    def __init__(self, group: Group, store: dist.Store, *, slot_bytes: int) -> None:
        """Map them on every rank, each on its current device. Raises: RankStalled.

        Units: `slot_bytes` is what all channels of one rank hold of one peer in one turn.
        """
        self.group = group
        self.inbox = Inbox(num_ranks=group.size, slot_bytes=slot_bytes // CHANNELS // 16 * 16)
        # The handle's mappings live as long as what was allocated.
        self._own, self._handle = map_peers(group, store, "push", self.inbox.size_bytes)
        self._own.zero_()
        boxes = [
            self._handle.get_buffer(rank, (self.inbox.size_bytes,), torch.uint8, 0)
            for rank in range(group.size)
        ]
        device = self._own.device
        bases = [box.data_ptr() for box in boxes]
        self.addresses = torch.tensor(bases, dtype=torch.int64, device=device)
        self.state = torch.zeros(1 + CHANNELS, dtype=torch.int64, device=device)
        self.notice = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._order = StreamOrder()
        self.max_polls = _polls(group.timeout_s)
        # Nobody may write before every inbox has been zeroed.
        torch.cuda.synchronize(device)
        meet(group, store, "push-inboxes")

    def limit_waits(self, timeout_s: float) -> None:
        """See `PushMemory`."""
        self.max_polls = _polls(timeout_s)

    def put_in_order(self) -> None:
        """See `PushMemory`: epochs are counted in the order of the launches, on any stream."""
        self._order.changes_stream()


def _polls(timeout_s: float) -> int:
    return max(1, int(timeout_s / _POLL_S))
