"""What was asked of a step's exchanges: hidden or not, in which form; and what can be met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import PHASES, Layout, Phase, PhaseLayouts

# Rows of a step below which products are bound by their weights, so that no cut pays.
LEAST_ROWS: Mapping[Phase, int] = {"prefill": 64, "decode": 16}
_ON_DEVICES = (
    "the streams of a schedule are threads of the processor here; on devices computation and "
    "exchanges take turns, since a schedule over a device's own streams has not run on any"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPolicy:
    """The settings `overlap` and `wire`, in a phase; see `llm_engine.config.EngineConfig`."""

    overlap: str = "auto"
    wire: str = "exact"
    phase: Phase = "prefill"

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Those of an engine, of its prompts."""
        return cls(overlap=config.overlap, wire=config.wire)

    @property
    def where(self) -> str:
        """The place of its decisions in the ledger."""
        return f"llm engine, ranks, {self.phase}"

    def in_phase(self, phase: Phase) -> Self:
        """The same of another phase: answers are always decoded over an exact wire."""
        return replace(self, phase=phase, wire=self.wire if phase == "prefill" else "exact")

    @property
    def is_blocking(self) -> bool:
        """Whether nothing is to be looked at: whole steps, exact."""
        return self.overlap == "off" and self.wire == "exact"


@dataclass(frozen=True, slots=True)
class Unserved:
    """Why no schedule here hides a layout's exchanges; `hides` where the layout itself does."""

    reason: str
    remedy: str
    hides: bool


def unserved(layout: Layout, *, on_devices: bool = False) -> Unserved | None:
    """None where a step's exchanges can be cut and hidden. "auto" must be settled before.

    `on_devices` says that ranks compute on accelerators.
    """
    alone = "overlap is decided by the layout"
    if on_devices and layout.num_ranks > 1:
        return Unserved(_ON_DEVICES, "ask for overlap off", hides=False)
    if layout.pp > 1:
        reason = "a stage sends a chunk on while it computes the next one"
        return Unserved(reason, alone, hides=True)
    if layout.exchange == "ring":
        reason = (
            "the ring passes the next keys on while it attends to those in hand; a second half of "
            "the rows, to compute meanwhile, would send the keys of the past around once more"
        )
        return Unserved(reason, alone, hides=True)
    if layout.num_ranks == 1:
        return Unserved("one rank exchanges nothing", alone, hides=True)
    if layout.dp > 1 and layout.dispatch == "a2a":
        reason = f"layout {layout} sends each row to its experts and back: no schedule hides that"
        return Unserved(reason, "leave a2a out", hides=False)
    if layout.dp > 1 and layout.cp > 1:
        reason = (
            f"layout {layout} exchanges rows among cp ranks and those of all sequences for each "
            "MLP: no schedule hides both"
        )
        return Unserved(reason, f"take dp{layout.num_ranks}", hides=False)
    if layout.cp > 1 and (layout.tp > 1 or layout.ep > 1):
        other = "tp" if layout.tp > 1 else "ep"
        reason = (
            f"layout {layout} exchanges rows among cp ranks and sums among {other} ranks in every "
            "layer: no schedule hides both"
        )
        remedy = f"take cp{layout.num_ranks} or {other}{layout.num_ranks}"
        return Unserved(reason, remedy, hides=False)
    return None


def wire_unserved(layout: Layout, *, on_devices: bool = False) -> Unserved | None:
    """As `unserved`, of exchanges that travel as something else than they are."""
    if layout.dp > 1 and layout.num_ranks > 1:
        reason = "rows that every rank computes, and their sums, travel as they are"
        return Unserved(reason, f"take tp{layout.num_ranks}", hides=False)
    return unserved(layout, on_devices=on_devices)


def check_overlap(config: EngineConfig, layouts: PhaseLayouts) -> None:
    """Refuse before a weight is read what the layouts cannot give.

    Raises: InvalidConfig for overlap "on" or a wire other than exact without a schedule for it in
        the layout of prompts; StrictRefusal where exchanges of either phase block for want of one,
        under a strict floor.
    """
    on_devices = config.device != "cpu"
    _refuse_asked(config, layouts.prefill, on_devices=on_devices)
    if config.strict_floor is not None:
        ledger = Ledger()
        for decision in settled_decisions(OverlapPolicy.of(config), layouts, on_devices=on_devices):
            ledger.record(decision)
        ledger.require(Tier(config.strict_floor))


def _refuse_asked(config: EngineConfig, layout: Layout, *, on_devices: bool) -> None:
    for name, value, plain, missing in (
        ("overlap", config.overlap, ("auto", "off"), unserved(layout, on_devices=on_devices)),
        ("wire", config.wire, ("exact",), wire_unserved(layout, on_devices=on_devices)),
    ):
        if value not in plain and missing is not None:
            raise InvalidConfig(
                f"{name} is {value!r}, but prompts are laid out as {layout}: {missing.reason}. "
                f"Leave it out, or {missing.remedy}"
            )


def settled_decisions(
    policy: OverlapPolicy, layouts: PhaseLayouts, *, on_devices: bool = False
) -> list[Decision]:
    """What is decided without a measurement; the rest is, at the first step of each length."""
    found: list[Decision] = []
    for phase in PHASES:
        in_phase, layout = policy.in_phase(phase), layouts.of(phase)
        missing = unserved(layout, on_devices=on_devices)
        if missing is not None:
            found.append(_unserved_decision(in_phase, missing))
        elif policy.overlap == "off":
            found.append(_decision(in_phase, "overlap", "off", ("asked for",)))
    if policy.wire == "exact":
        reason = "bits do not depend on how ranks exchange; int8 is never taken unasked"
        found.append(_decision(policy, "wire", "exact", (reason,)))
    return found


def _unserved_decision(policy: OverlapPolicy, missing: Unserved) -> Decision:
    if missing.hides:
        return _decision(policy, "overlap", "by the layout", (missing.reason,))
    is_asked = policy.overlap == "off"
    return _decision(
        policy,
        "overlap",
        "off",
        ("asked for",) if is_asked else (missing.reason,),
        tier=Tier.VENDOR if is_asked else Tier.GENERIC,
        rejected=(Rejection(candidate="on", reasons=(missing.reason,)),),
        remedy=missing.remedy,
    )


def _decision(
    policy: OverlapPolicy,
    what: Literal["overlap", "wire"],
    chosen: str,
    reasons: tuple[str, ...],
    *,
    tier: Tier = Tier.VENDOR,
    rejected: tuple[Rejection, ...] = (),
    remedy: str = "",
) -> Decision:
    asked, default = (policy.wire, "exact") if what == "wire" else (policy.overlap, "auto")
    return Decision(
        kind="wire" if what == "wire" else "collective",
        where=policy.where,
        what=what,
        asked=asked,
        chosen=chosen,
        tier=tier,
        source="default" if asked == default else "explicit",
        reasons=reasons,
        rejected=rejected,
        evidence="run on CPU between processes of one host; over several GPUs or hosts: unverified",
        remedy=remedy,
    )
