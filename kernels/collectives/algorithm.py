"""One way to carry out an operation, as data, and what it finds in a fabric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.collectives.adapters.workspaces import Workspaces
from kernels.collectives.calls import REDUCTIONS, Contract, Reduction
from kernels.collectives.costs import CostFormula
from kernels.collectives.fabric import Fabric, Transport
from kernels.collectives.group import Group
from kernels.collectives.library import Library
from kernels.collectives.limited_link import LimitedLink
from kernels.collectives.link import Link
from kernels.collectives.push.pushes import Pushes
from kernels.collectives.slots import Slots

# The transports that carry messages between two ranks.
LINKED: tuple[Transport, ...] = ("shm", "gloo", "tcp", "nccl")
# What moves values or adds them in order keeps both.
MOVES: tuple[Contract, ...] = ("exact", "fast")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Algorithm:
    """One way. `run` takes the fabric and then what the operation has (see below).

    all_reduce (x_N, reduction) · reduce_scatter (parts, out_N, reduction) · all_gather (parts) ·
    all_to_all (outgoing, incoming, longest) · broadcast (x_N, root). Tensors are contiguous, of
    one dim. `unmet` says why a group cannot use it; `dtypes` (torch's names) and `reductions` are
    those that it takes, all dtypes where none is named; `made_by` names another project's version.
    """

    name: str
    operation: str
    transport: Transport
    contracts: tuple[Contract, ...]
    run: Callable[..., None]
    cost_s: CostFormula
    unmet: Callable[[Group], str | None] = lambda _: None
    dtypes: tuple[str, ...] = ()
    reductions: tuple[Reduction, ...] = REDUCTIONS
    made_by: Callable[[], str] = lambda: ""

    def unmet_values(self, dtype: str, reduction: Reduction) -> str | None:
        """Why it does not take these values; None where it does."""
        if self.dtypes and dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)}, not {dtype}"
        if reduction not in self.reductions:
            return f"joins by {', '.join(self.reductions)}, not by {reduction}"
        return None


def unmet_limit(group: Group) -> str | None:
    """Why a way that moves bytes outside of messages, which nothing would slow, is not taken."""
    return "the group's link is limited: takes algorithms of messages" if group.is_limited else None


def pushes_of(fabric: Fabric) -> Pushes:
    """The push operations of a fabric that has them."""
    assert fabric.pushes is not None
    return fabric.pushes


def workspaces_of(fabric: Fabric) -> Workspaces:
    """FlashInfer's workspaces of a fabric that has them."""
    assert fabric.workspaces is not None
    return fabric.workspaces


def slots_of(fabric: Fabric, transport: Transport) -> Slots:
    """The slots of a fabric that has them."""
    slots = fabric.peer_slots if transport == "peer" else fabric.slots
    assert slots is not None
    return slots


def library_of(fabric: Fabric, transport: Transport) -> Library:
    """A library's group of a fabric that has it."""
    return fabric.libraries[transport]


def has_link(transport: Transport) -> bool:
    """Whether a transport carries messages between two ranks."""
    return transport in LINKED


def link_of(fabric: Fabric, transport: Transport) -> Link:
    """The link of one transport."""
    own = {"shm": fabric.channel, "tcp": fabric.sockets}
    link = own[transport] if transport in own else fabric.libraries[transport]
    assert link is not None
    group = fabric.group
    return LimitedLink(link, group.rate_bytes_s, group.latency_s) if group.is_limited else link
