"""Choose an implementation from facts and an explicit argument, never from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.errors import ImplUnavailable, NoImplementation
from kernels.ledger import Decision, Rejection, Source
from kernels.spec import Case, Implementation, OpSpec
from kernels.tuned import Lookup, TunedTable

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
    tuned: Mapping[str, str] | TunedTable | None = None,
) -> Decision:
    """Which implementation of `spec` serves `case` on a device with `traits`.

    An explicit request is met or refused, never replaced. `auto` walks a tuned choice (measured
    faster on these traits; a table, or a name by op) and then the order of preference, and records
    why each better candidate was passed over and what a table says of the case.

    Raises:
        ImplUnavailable: the request names an implementation that cannot serve the case.
        NoImplementation: nothing can.
    """
    if asked != AUTO:
        return _decision(spec, case, _explicit(spec, case, traits, asked), asked, where, "explicit")
    rejected: list[Rejection] = []
    found = _tuned_choice(spec, case, traits, tuned)
    for candidate, source in _candidates(spec, found.choice):
        unmet = candidate.unmet(traits, case)
        if not unmet:
            decision = _decision(spec, case, candidate, asked, where, source, tuple(rejected))
            says_so = found.reason and (source == "tuned" or found.choice is None)
            return replace(decision, reasons=(found.reason,)) if says_so else decision
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


def _tuned_choice(
    spec: OpSpec,
    case: Case,
    traits: DeviceTraits,
    tuned: Mapping[str, str] | TunedTable | None,
) -> Lookup:
    if not isinstance(tuned, TunedTable):
        return Lookup(choice=(tuned or {}).get(spec.name))
    found = tuned.lookup(spec.name, case, traits.name)
    if found.choice is None or found.choice in {i.name for i in spec.implementations}:
        return found
    return Lookup(reason=f"tuned choice {found.choice!r} ignored: {spec.name} has no such one")


def _candidates(spec: OpSpec, choice: str | None) -> tuple[tuple[Implementation, Source], ...]:
    in_order: list[tuple[Implementation, Source]] = []
    if choice is not None:
        in_order.append((spec.find(choice), "tuned"))
    for implementation in spec.implementations:
        if implementation.name != choice:
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
