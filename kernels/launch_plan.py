"""The launch plan: which implementation serves every layer of a model on a machine, and why.

Computed from a model's shape and the machine's facts before any weight is read; free of torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernels.dispatch import AUTO, choose
from kernels.errors import NoImplementation
from kernels.layer_groups import LayerGroup, ModelShape, OpUse
from kernels.ledger import Decision, Ledger
from kernels.plan_mechanisms import mechanism_decisions
from kernels.plan_score import PhaseScore, no_fallback_scores
from kernels.plan_specs import Lookup, registered, specs_within_profile
from kernels.plan_text import machine_dict, model_dict, rows_dict
from kernels.spec import Tier
from kernels.tuned import tuned_table

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.hardware.traits import DeviceTraits

MISSING = "missing"
NOTHING = "nothing"
COMES_LATER = "no kernel of this name yet: it comes with the model family"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUse:
    """An op use of a group in a phase, decided for one family of devices."""

    phase: str
    group: LayerGroup
    use: OpUse
    device: str
    decision: Decision

    @property
    def weight(self) -> tuple[float, float]:
        """Work and traffic of this use in a step: operations, bytes."""
        calls = self.group.num_layers * self.use.count
        return calls * self.use.cost.flops, calls * self.use.cost.read_write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything that was decided for a model on a machine.

    Invariants: equal inputs give an equal `hash`; `decisions` holds those of `uses` and those of
    the mechanisms, collectives, caches and pages around them.
    """

    model: ModelShape
    machine: Machine
    uses: tuple[PlannedUse, ...]
    decisions: Ledger
    scores: tuple[PhaseScore, ...]
    versions: Mapping[str, str]

    @property
    def missing(self) -> tuple[Decision, ...]:
        """Decisions about ops that no kernel exists for yet."""
        return tuple(d for d in self.decisions if d.chosen == MISSING)

    @property
    def uncovered(self) -> tuple[Decision, ...]:
        """Shapes that no fused or vendor kernel covers, though kernels of the op exist."""
        low = self.decisions.below(Tier.FUSED)
        return tuple(d for d in low if d.kind == "kernel" and d.chosen != MISSING)

    @property
    def no_fallback_score(self) -> float:
        """The smallest share, of work or of traffic, that fused or vendor kernels carry."""
        return min((min(s.flops, s.traffic) for s in self.scores), default=1.0)

    @property
    def hash(self) -> str:
        """sha256 of the plan's canonical JSON, package versions included."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def require(self, floor: Tier) -> None:
        """Refuse when a layer lies below `floor`.

        Raises:
            StrictRefusal: one line for each, with layer, reason and remedy.
        """
        self.decisions.require(floor)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"hash": self.hash, **self._content()}

    def _content(self) -> dict[str, Any]:
        kernels = {planned.decision for planned in self.uses}
        return {
            "model": model_dict(self.model),
            "machine": machine_dict(self.machine),
            "phases": [
                {"name": p.name, "rows": p.rows, "context": p.context, "batch": p.batch}
                for p in self.model.phases
            ],
            "uses": [_use_dict(planned) for planned in self.uses],
            "decisions": [d.as_dict() for d in self.decisions if d not in kernels],
            "pages": [rows_dict(rows) for rows in self.model.rows],
            "missing": sorted({d.what for d in self.missing}),
            "uncovered": sorted({f"{d.what}: {d.case}" for d in self.uncovered}),
            "no_fallback_score": self.no_fallback_score,
            "scores": [asdict(score) for score in self.scores],
            "versions": dict(sorted(self.versions.items())),
        }


def compute_plan(
    model: ModelShape,
    machine: Machine,
    *,
    versions: Mapping[str, str],
    choices: Iterable[Decision] = (),
    asked: Mapping[str, str] | None = None,
    lookup: Lookup = registered,
) -> LaunchPlan:
    """Decide every op use of every phase for every family of devices of the machine.

    `choices` are decisions made beforehand (formats); `asked` names an implementation by op.

    Raises:
        ImplUnavailable: an implementation asked for by name cannot serve a layer.
    """
    ledger = Ledger()
    for decision in (*choices, *model.choices, *mechanism_decisions(model, machine)):
        ledger.record(decision)
    families = machine.traits
    uses = tuple(
        planned
        for traits in families
        for planned in _planned(
            model,
            traits,
            asked or {},
            specs_within_profile(traits, lookup),
            f" on {traits.name}" if len(families) > 1 else "",
        )
    )
    for planned in uses:
        ledger.record(planned.decision)
    scores = no_fallback_scores((u.phase, u.device, u.decision.tier, *u.weight) for u in uses)
    return LaunchPlan(
        model=model,
        machine=machine,
        uses=uses,
        decisions=ledger,
        scores=scores,
        versions=dict(versions),
    )


def _planned(
    model: ModelShape,
    traits: DeviceTraits,
    asked: Mapping[str, str],
    spec_of: Lookup,
    place: str,
) -> Iterator[PlannedUse]:
    """Every use of every phase on one family; `place` names it where there are several."""
    for phase in model.phases:
        for group in phase.groups:
            where = f"{group.name}, {phase.name}{place}"
            for use in group.uses:
                decision = _decide(use, traits, where, asked, spec_of)
                yield PlannedUse(
                    phase=phase.name, group=group, use=use, device=traits.name, decision=decision
                )


def _decide(
    use: OpUse, traits: DeviceTraits, where: str, asked: Mapping[str, str], spec_of: Lookup
) -> Decision:
    spec = spec_of(use.op)
    request = asked.get(use.op, AUTO)
    if spec is None:
        return _without_kernel(use, where, request, MISSING, COMES_LATER)
    try:
        table = tuned_table(traits.name)
        return choose(spec, use.case, traits, asked=request, where=where, tuned=table)
    except NoImplementation as error:
        return _without_kernel(use, where, request, NOTHING, str(error))


def _without_kernel(use: OpUse, where: str, request: str, chosen: str, reason: str) -> Decision:
    return Decision(
        kind="kernel",
        where=where,
        what=use.op,
        asked=request,
        chosen=chosen,
        tier=Tier.GENERIC,
        source="default",
        case=str(use.case),
        reasons=(reason,),
        remedy="start without --strict, or take a model whose ops all have kernels",
    )


def _use_dict(planned: PlannedUse) -> dict[str, Any]:
    flops, traffic = planned.weight
    return {
        **planned.decision.as_dict(),
        "phase": planned.phase,
        "group": planned.group.name,
        "layers": list(planned.group.layers),
        "device": planned.device,
        "calls_per_layer": planned.use.count,
        "flops": flops,
        "traffic_bytes": traffic,
    }
