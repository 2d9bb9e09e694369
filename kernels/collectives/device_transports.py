"""Which transports are opened between devices: what every rank can have, and why not the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from kernels.collectives.board import meet
from kernels.collectives.choice import Knowledge
from kernels.collectives.fabric import DEVICE_TRANSPORTS, EVIDENCE, Transport, openable
from kernels.collectives.group import Group
from kernels.errors import NoImplementation
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier

# Their kernels wait on the device, where no host can end them: opened for a reason alone.
_WAITING: tuple[Transport, ...] = ("push", "flashinfer")
_UNASKED = (
    "its kernels wait on the device: opened where a table of this machine has chosen it, which "
    "`lanewise tune --device cuda` measures"
)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What one rank knows of its device: which one it is, and why transports cannot be opened."""

    identity: str
    closed: Mapping[str, str]

    @classmethod
    def read(cls, place: torch.device) -> DeviceFacts:
        """Those of a device that is this thread's current one."""
        properties = torch.cuda.get_device_properties(place)
        _, closed = openable(DEVICE_TRANSPORTS)
        return cls(str(getattr(properties, "uuid", place)), closed)


def agree_transports(
    group: Group, store: dist.Store, own: DeviceFacts, knowledge: Knowledge
) -> tuple[tuple[Transport, ...], Decision]:
    """What all ranks open, the same on each, from what every one of them knows.

    Raises: RankStalled; NoImplementation where no transport can be opened on all of them.
    """
    store.set(f"device-facts-{group.rank}", json.dumps(asdict(own)))
    meet(group, store, "device-facts-told")
    told = [json.loads(store.get(f"device-facts-{rank}")) for rank in range(group.size)]
    return choose_transports([DeviceFacts(**each) for each in told], knowledge)


def choose_transports(
    ranks: Sequence[DeviceFacts], knowledge: Knowledge
) -> tuple[tuple[Transport, ...], Decision]:
    """The transports that every rank can open and that there is a reason for, and the decision.

    `knowledge` is what choices between devices rest on.
    Raises: NoImplementation where none is left, with the reasons for each.
    """
    reasons: dict[Transport, tuple[str, ...]] = {
        name: _closed(name, ranks, knowledge) for name in DEVICE_TRANSPORTS
    }
    is_open: list[Transport] = [name for name in DEVICE_TRANSPORTS if not reasons[name]]
    if not is_open:
        tried = "; ".join(f"{name}: {', '.join(why)}" for name, why in reasons.items())
        raise NoImplementation(f"no transport between the devices of {len(ranks)} ranks: {tried}")
    return tuple(is_open), _decision(is_open, reasons, len(ranks), knowledge)


def _closed(name: Transport, ranks: Sequence[DeviceFacts], knowledge: Knowledge) -> tuple[str, ...]:
    found: dict[str, list[int]] = {}
    for rank, facts in enumerate(ranks):
        if reason := facts.closed.get(name):
            found.setdefault(reason, []).append(rank)
    reasons = [f"on rank {', '.join(map(str, held))}: {reason}" for reason, held in found.items()]
    if name != "staged" and (shared := _shared(ranks)):
        reasons.append(shared)
    if name in _WAITING and not any(c.startswith(f"{name}/") for c in knowledge.chosen.values()):
        reasons.append(_UNASKED)
    return tuple(reasons)


def _shared(ranks: Sequence[DeviceFacts]) -> str:
    """Which ranks have one device; empty where each has its own."""
    counts = Counter(facts.identity for facts in ranks)
    several = [r for r, facts in enumerate(ranks) if counts[facts.identity] > 1]
    return f"ranks {', '.join(map(str, several))} share a device" if several else ""


def _decision(
    is_open: Sequence[Transport],
    reasons: Mapping[Transport, tuple[str, ...]],
    num_ranks: int,
    knowledge: Knowledge,
) -> Decision:
    """Tier: how ranks are joined is no grade of a kernel, so a floor on kernels passes it."""
    why = "all that every rank can open; each exchange takes one of them, see the decisions on it"
    if list(is_open) == ["staged"]:
        why = "through the host's memory alone: the ways between the devices themselves are closed"
    return Decision(
        kind="collective",
        where=f"between {num_ranks} ranks",
        what="transports between devices",
        asked="auto",
        chosen=", ".join(is_open),
        tier=Tier.VENDOR,
        source="tuned" if set(is_open) & set(_WAITING) else "default",
        reasons=(why,),
        rejected=tuple(Rejection(candidate=name, reasons=r) for name, r in reasons.items() if r),
        evidence=f"{knowledge.evidence}; {'; '.join(f'{n} {EVIDENCE[n]}' for n in is_open)}",
    )
