"""One way to carry out an operation, as data, and what it finds in a fabric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.collectives.calls import Contract
from kernels.collectives.costs import CostFormula
from kernels.collectives.fabric import Fabric, Transport
from kernels.collectives.group import Group
from kernels.collectives.library import Library
from kernels.collectives.link import Link
from kernels.collectives.local import LimitedLink
from kernels.collectives.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Algorithm:
    """One way. `run` takes the fabric and then what the operation has (see below).

    all_reduce (x_N, reduction) · reduce_scatter (parts, out_N, reduction) · all_gather (parts) ·
    all_to_all (outgoing, incoming, longest) · broadcast (x_N, root). Tensors are contiguous, of
    one dim. `unmet` says why a group cannot use it.
    """

    name: str
    operation: str
    transport: Transport
    contracts: tuple[Contract, ...]
    run: Callable[..., None]
    cost_s: CostFormula
    unmet: Callable[[Group], str | None] = lambda _: None


def slots_of(fabric: Fabric, transport: Transport) -> Slots:
    """The slots of a fabric that has them."""
    slots = fabric.peer_slots if transport == "peer" else fabric.slots
    assert slots is not None
    return slots


def library_of(fabric: Fabric, transport: Transport) -> Library:
    """A library's group of a fabric that has it."""
    return fabric.libraries[transport]


def link_of(fabric: Fabric, transport: Transport) -> Link:
    """The link of one transport."""
    own = {"shm": fabric.channel, "tcp": fabric.sockets}
    link = own[transport] if transport in own else fabric.libraries[transport]
    assert link is not None
    group = fabric.group
    return LimitedLink(link, group.rate_bytes_s, group.latency_s) if group.is_limited else link
