"""What was asked of a prompt's exchanges: hidden or not, in which form; and what can be met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import Layout

WHERE = "llm engine, ranks, prefill"
_ON_DEVICES = (
    "the streams of a schedule are threads of the processor here; on devices computation and "
    "exchanges take turns, since a schedule over a device's own streams has not run on any"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPolicy:
    """The settings `overlap` and `wire`; see `llm_engine.config.EngineConfig`."""

    overlap: str = "auto"
    wire: str = "exact"

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Those of an engine."""
        return cls(overlap=config.overlap, wire=config.wire)

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
    """None where a prompt's exchanges can be cut and hidden. "auto" must be settled before.

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
    if layout.dp > 1:
        reason = (
            f"layout {layout} gathers the rows of all sequences before each MLP and scatters them "
            "after it: no schedule hides that"
        )
        return Unserved(reason, f"take tp{layout.num_ranks}", hides=False)
    if layout.cp > 1 and (layout.tp > 1 or layout.ep > 1):
        other = "tp" if layout.tp > 1 else "ep"
        reason = (
            f"layout {layout} exchanges rows among cp ranks and sums among {other} ranks in every "
            "layer: no schedule hides both"
        )
        remedy = f"take cp{layout.num_ranks} or {other}{layout.num_ranks}"
        return Unserved(reason, remedy, hides=False)
    return None


def check_overlap(config: EngineConfig, layout: Layout) -> None:
    """Refuse before a weight is read what the prefill layout cannot give.

    Raises: InvalidConfig for overlap "on" or a wire other than exact without a schedule for it;
        StrictRefusal where exchanges block for want of one, under a strict floor.
    """
    on_devices = config.device != "cpu"
    missing = unserved(layout, on_devices=on_devices)
    if missing is None:
        return
    refused = [
        f"{name} is {value!r}"
        for name, value, plain in (
            ("overlap", config.overlap, ("auto", "off")),
            ("wire", config.wire, ("exact",)),
        )
        if value not in plain
    ]
    if refused:
        raise InvalidConfig(
            f"{' and '.join(refused)}, but prompts are laid out as {layout}: {missing.reason}. "
            f"Leave it out, or {missing.remedy}"
        )
    if config.strict_floor is not None:
        ledger = Ledger()
        policy = OverlapPolicy.of(config)
        for decision in settled_decisions(policy, layout, on_devices=on_devices):
            ledger.record(decision)
        ledger.require(Tier(config.strict_floor))


def settled_decisions(
    policy: OverlapPolicy, layout: Layout, *, on_devices: bool = False
) -> list[Decision]:
    """What is decided without a measurement; the rest is, at the first step of each length."""
    found: list[Decision] = []
    missing = unserved(layout, on_devices=on_devices)
    if missing is not None:
        found.append(_unserved_decision(policy, missing))
    elif policy.overlap == "off":
        found.append(_decision("overlap", "off", policy.overlap, ("asked for",)))
    if policy.wire == "exact":
        reason = "bits do not depend on how ranks exchange; int8 is never taken unasked"
        found.append(_decision("wire", "exact", policy.wire, (reason,)))
    return found


def _unserved_decision(policy: OverlapPolicy, missing: Unserved) -> Decision:
    if missing.hides:
        return _decision("overlap", "by the layout", policy.overlap, (missing.reason,))
    is_asked = policy.overlap == "off"
    return _decision(
        "overlap",
        "off",
        policy.overlap,
        ("asked for",) if is_asked else (missing.reason,),
        tier=Tier.VENDOR if is_asked else Tier.GENERIC,
        rejected=(Rejection(candidate="on", reasons=(missing.reason,)),),
        remedy=missing.remedy,
    )


def _decision(
    what: str,
    chosen: str,
    asked: str,
    reasons: tuple[str, ...],
    *,
    tier: Tier = Tier.VENDOR,
    rejected: tuple[Rejection, ...] = (),
    remedy: str = "",
) -> Decision:
    is_default = asked == ("exact" if what == "wire" else "auto")
    return Decision(
        kind="wire" if what == "wire" else "collective",
        where=WHERE,
        what=what,
        asked=asked,
        chosen=chosen,
        tier=tier,
        source="default" if is_default else "explicit",
        reasons=reasons,
        rejected=rejected,
        evidence="run on CPU between processes of one host; over several GPUs or hosts: unverified",
        remedy=remedy,
    )
