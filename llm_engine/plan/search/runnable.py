"""Which pairs of layouts the engine runs today, as the text that it reads; why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import PHASES, Phase, PhaseLayouts
from llm_engine.parallel.overlap_policy import unserved, wire_unserved

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout

# Families of plan/families.py whose architectures llm_engine/models/registry.py computes.
RUNNING_FAMILIES = frozenset(("llama", "qwen3", "qwen3_moe", "gpt_oss"))
_FAMILIES_WITH_SINKS = frozenset(("gpt_oss",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """`text` is what `--layout` takes; empty where this version cannot run the pair: `reason`.

    `services`: so many of them, each on devices of its own. `wire`: what `--wire` takes.
    `blocks`: phases whose exchanges are not hidden although chunks could hide them, and why.
    """

    text: str
    services: int = 1
    wire: str = "exact"
    reason: str = ""
    blocks: Mapping[Phase, str] = field(default_factory=dict["Phase", str])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsToday:
    """The best pair of layouts that this version runs, or the reason why it runs none.

    `is_plan`: the chosen pair itself runs as planned; else `slower` is the seconds of the goal over
    its own, less one (0 where the goal is no time), and the cache holds `kv_tokens`. `blocks`: why
    exchanges are not hidden although chunks could hide them.
    """

    text: str
    reason: str = ""
    services: int = 1
    wire: str = "exact"
    num_ranks: int = 1
    prefill: str = ""
    decode: str = ""
    is_plan: bool = False
    slower: float = 0.0
    kv_tokens: int = 0
    blocks: str = ""


def runnable(family: str, prefill: Layout, decode: Layout, *, on_devices: bool = False) -> Runnable:
    """Whether this version runs a family under a pair of layouts, and how to ask for it.

    `on_devices` says that ranks would compute on accelerators, not on a CPU.
    """
    if family not in RUNNING_FAMILIES:
        return Runnable(text="", reason=f"no {family} model in this version's engine yet")
    for layout in (prefill, decode):
        if reason := _against(layout):
            return Runnable(text="", reason=reason)
    if decode.wire != "bf16":
        reason = f"not in this version: {decode.wire} wire where answers are decoded"
        return Runnable(text="", reason=reason)
    if prefill.cp > 1 and prefill.keys == "gather":
        reason = "not in this version: gathered keys of which answers find their heads"
        return Runnable(text="", reason=reason)
    ways = {prefill.experts, decode.experts}
    has_split_experts = bool(ways & {"reduce", "gather", "exchange"})
    texts = [_text(layout, has_split_experts=has_split_experts) for layout in (prefill, decode)]
    try:
        layouts = PhaseLayouts.parse("->".join(texts))
    except InvalidConfig as error:
        return Runnable(text="", reason=str(error))
    if family in _FAMILIES_WITH_SINKS and (prefill.cp > 1 or layouts.is_hybrid):
        reason = f"not in this version: sinks of {family} where keys move between ranks"
        return Runnable(text="", reason=reason)
    wire = "exact" if prefill.wire == "bf16" else prefill.wire
    no_wire = wire_unserved(layouts.prefill, on_devices=on_devices)
    if wire != "exact" and no_wire is not None:
        return Runnable(text="", reason=f"not in this version: {wire} wire: {no_wire.reason}")
    blocks = _blocked(layouts, on_devices=on_devices)
    return Runnable(text=str(layouts), services=prefill.replicas, wire=wire, blocks=blocks)


def _blocked(layouts: PhaseLayouts, *, on_devices: bool) -> dict[Phase, str]:
    """See `Runnable.blocks`."""
    blocks: dict[Phase, str] = {}
    for phase in PHASES:
        missing = unserved(layouts.of(phase), on_devices=on_devices)
        if missing is not None and not missing.hides:
            blocks[phase] = missing.reason
    return blocks


def _against(layout: Layout) -> str:
    if layout.kv_shard > 1:
        return "not in this version: cached rows divided by tokens"
    if layout.dp > 1 and layout.experts not in ("gather", "exchange", "dense"):
        return "not in this version: sequences over ranks with whole MLPs: replicas do the same"
    if layout.experts == "exchange" and layout.tp > 1:
        return "not in this version: rows sent to their experts from ranks that divide heads"
    return ""


def _text(layout: Layout, *, has_split_experts: bool) -> str:
    """One phase as the engine reads it; experts stay where the other phase needs them."""
    axes = {"dp": layout.dp, "tp": layout.tp, "cp": layout.cp, "pp": layout.pp}
    if has_split_experts:
        axes["ep"] = layout.width
    parts = [f"{axis}{count}" for axis, count in axes.items() if count > 1]
    parts += ["ring"] if layout.cp > 1 and layout.keys == "ring" else []
    parts += ["a2a"] if layout.experts == "exchange" and layout.cp * layout.dp > 1 else []
    return ",".join(parts) or "tp1"
