"""Choose an implementation from facts and an explicit argument, never from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels.errors import ImplUnavailable, NoImplementation
from kernels.ledger import Decision, Rejection, Source
from kernels.spec import Case, Implementation, OpSpec

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits

AUTO = "auto"


def choose(
    spec: OpSpec,
    case: Case,
    traits: DeviceTraits,
    *,
    asked: str = AUTO,
    where: str = "",
    tuned: Mapping[str, str] | None = None,
) -> Decision:
    """Which implementation of `spec` serves `case` on a device with `traits`.

    An explicit request is met or refused, never replaced. `auto` walks a tuned choice (measured
    faster on these traits, by op name) and then the order of preference, and records why each
    better candidate was passed over.

    Raises:
        ImplUnavailable: the request names an implementation that cannot serve the case.
        NoImplementation: nothing can.
    """
    if asked != AUTO:
        return _decision(spec, case, _explicit(spec, case, traits, asked), asked, where, "explicit")
    rejected: list[Rejection] = []
    for candidate, source in _candidates(spec, tuned or {}):
        unmet = candidate.unmet(traits, case)
        if not unmet:
            return _decision(spec, case, candidate, asked, where, source, tuple(rejected))
        rejected.append(Rejection(candidate=candidate.name, reasons=unmet))
    tried = "; ".join(f"{r.candidate}: {', '.join(r.reasons)}" for r in rejected)
    raise NoImplementation(f"{spec.name} ({case}) on {traits.name}: nothing fits. {tried}")


def _explicit(spec: OpSpec, case: Case, traits: DeviceTraits, asked: str) -> Implementation:
    implementation = spec.find(asked)
    unmet = implementation.unmet(traits, case)
    if unmet:
        raise ImplUnavailable(
            f"{spec.name}: {asked!r} was asked for and cannot serve {case} on {traits.name}: "
            f"{'; '.join(unmet)}. Ask for 'auto' to take the best that fits."
        )
    return implementation


def _candidates(
    spec: OpSpec, tuned: Mapping[str, str]
) -> tuple[tuple[Implementation, Source], ...]:
    in_order: list[tuple[Implementation, Source]] = []
    if spec.name in tuned:
        in_order.append((spec.find(tuned[spec.name]), "tuned"))
    for implementation in spec.implementations:
        if implementation.name != tuned.get(spec.name):
            in_order.append((implementation, "default"))
    return tuple(in_order)


def _decision(
    spec: OpSpec,
    case: Case,
    chosen: Implementation,
    asked: str,
    where: str,
    source: Source,
    rejected: tuple[Rejection, ...] = (),
) -> Decision:
    better = [i for i in spec.implementations if i.tier.reaches(chosen.tier) and i != chosen]
    remedy = f"meet the requirements of {better[0].name}" if rejected and better else ""
    return Decision(
        kind="kernel",
        where=where,
        what=spec.name,
        asked=asked,
        chosen=chosen.name,
        tier=chosen.tier,
        source=source,
        case=str(case),
        rejected=rejected,
        evidence=chosen.evidence,
        remedy=remedy,
    )
