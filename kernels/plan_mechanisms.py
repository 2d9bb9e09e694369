"""Decisions that no op makes: sparse attention on, graphs, peer mechanisms, collectives, pages.

They say how kernels are started and joined, not how good they are, so they stand at the tier of
the vendor's own software and a floor on kernels does not count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from kernels.hardware.profile import VendorProfile, load_profile
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.hardware.traits import DeviceTraits
    from kernels.layer_groups import ModelShape, RowGroup

_UNPROBED = "unverified: nothing has been probed on this machine"
_KIND_OF_MECHANISM: dict[str, Literal["graph", "collective"]] = {
    "pdl": "graph",
    "symmetric_memory": "collective",
    "custom_allreduce": "collective",
}


def mechanism_decisions(model: ModelShape, machine: Machine) -> tuple[Decision, ...]:
    """Every mechanism of every family present, the collective transport, and the pages."""
    found: list[Decision] = []
    for traits in machine.traits:
        profile = load_profile(traits.backend)
        if model.has_sparse_attention:
            found.append(_sparse_attention(traits, profile))
        found.append(_graphs(traits, profile))
        found += _mechanisms_off(traits, profile)
    if machine.num_devices > 1:
        found += [_transport(machine), _layout(machine)]
    found += [_page(rows, machine) for rows in model.rows]
    return tuple(found)


def _sparse_attention(traits: DeviceTraits, profile: VendorProfile) -> Decision:
    """On everywhere; where the vendor wants it asked for, the plan asks."""
    is_explicit = "explicit" in (profile.sparse_attention, traits.sparse_attention_default)
    return Decision(
        kind="kernel",
        where=f"every sparse attention layer on {traits.name}",
        what="sparse attention",
        asked="on" if is_explicit else "auto",
        chosen="on, switched on explicitly" if is_explicit else "on",
        tier=Tier.VENDOR,
        source="explicit" if is_explicit else "default",
        reasons=(profile.reason("sparse_attention"),),
        rejected=(
            Rejection(
                candidate="dense attention",
                reasons=("never a fallback: its work grows with the square of the context",),
            ),
        ),
    )


def _graphs(traits: DeviceTraits, profile: VendorProfile) -> Decision:
    has_graphs = profile.graphs and bool(traits.graph_capture)
    missing = "graph_capture is not known" if traits.graph_capture is None else "no graph capture"
    reason = profile.reason("graphs") if not profile.graphs else f"{missing} on {traits.name}"
    return Decision(
        kind="graph",
        where=f"decode steps on {traits.name}",
        what="graphs",
        asked="auto",
        chosen="on" if has_graphs else "off",
        tier=Tier.VENDOR,
        source="default",
        reasons=(profile.reason("graphs") if has_graphs else reason,),
        evidence="" if traits.verified else _UNPROBED,
    )


def _mechanisms_off(traits: DeviceTraits, profile: VendorProfile) -> Iterator[Decision]:
    """NVIDIA's and AMD's mechanisms where the profile or the family rules them out."""
    for name, kind in _KIND_OF_MECHANISM.items():
        is_allowed, is_there = getattr(profile, name), getattr(traits, name)
        if is_allowed and is_there is not False:
            continue
        reason = profile.reason(name) if not is_allowed else traits.note(name)
        yield Decision(
            kind=kind,
            where=f"every step on {traits.name}",
            what=name,
            asked="auto",
            chosen="off",
            tier=Tier.VENDOR,
            source="default",
            reasons=(reason,),
        )


def _transport(machine: Machine) -> Decision:
    """How bytes get from device to device, from what is known of the links."""
    links = machine.links
    reasons = {
        "yes": f"peer access over {links.link_class}: {links.source}",
        "no": f"no peer access over {links.link_class}: every byte goes through host memory",
        "unknown": "peer access is not known: host memory until a probe shows otherwise",
    }
    is_peer = links.p2p == "yes"
    peer = Rejection(candidate="peer copies", reasons=(f"p2p is {links.p2p}: {links.source}",))
    staged = Rejection(candidate="host-staged", reasons=("every byte would cross the bus twice",))
    return Decision(
        kind="collective",
        where=f"between {machine.num_devices} devices",
        what="transport",
        asked="auto",
        chosen="peer copies" if is_peer else "host-staged",
        tier=Tier.VENDOR,
        source="default",
        reasons=(reasons[links.p2p],),
        rejected=(staged if is_peer else peer,),
        evidence=_UNPROBED,
        remedy="" if is_peer else "a driver or a card with peer access",
    )


def _layout(machine: Machine) -> Decision:
    """Shapes are planned before layers are cut: a cut layer has fewer heads or columns."""
    return Decision(
        kind="layout",
        where=f"across {machine.num_devices} devices",
        what="layout",
        asked="auto",
        chosen="whole layers",
        tier=Tier.VENDOR,
        source="default",
        reasons=("shapes are those of layers that no device shares: a pipeline, or replicas",),
        evidence=_UNPROBED,
    )


def _page(rows: RowGroup, machine: Machine) -> Decision:
    dictating = [
        profile.reason("page_size")
        for traits in machine.traits
        if traits.kind != "cpu"
        and "triton" not in (profile := load_profile(traits.backend)).kernel_classes
    ]
    return Decision(
        kind="page",
        where=f"cache group {rows.name}",
        what="page",
        asked="auto",
        chosen=f"{rows.page_tokens} tokens, {rows.rows_per_page} rows",
        tier=Tier.VENDOR,
        source="default",
        reasons=(*dictating, rows.reason),
    )
