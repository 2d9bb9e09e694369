"""How long a clip takes under one layout: a rank's work, the ranks' exchanges, what hides what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernels.collectives.schedules.gate import Overlap
from kernels.cost_model.exchange import Exchange
from kernels.cost_model.parts import Parts
from kernels.cost_model.rates import DeviceRates
from video_engine.plan.clip_layout import (
    ClipFacts,
    ClipLayout,
    exchanged_heads,
    passed_keys,
    reduced_rows,
    transfer_s,
)

if TYPE_CHECKING:
    from kernels.layer_groups import LayerGroup, ModelShape, OpUse

# Forward passes of a clip: 50 grid points without guidance; 40 steps with it, which doubles them.
FORWARDS: Mapping[str, int] = {"minimax_h3": 49, "wan": 80}
# Branches of guidance: forward passes of one step that do not wait for each other.
BRANCHES: Mapping[str, int] = {"minimax_h3": 1, "wan": 2}
_MODEL_ERROR = 0.1  # of what no cause stands for: interference, waiting
_STREAMS = 12  # activations of a rank's rows that live at once, of the model's width: assumed
# Dense attention over long rows against products; with it, one H200 takes 15 s for the step of 209
# frames that was reported at 14.19 s.
_ATTENTION_SHARE = 0.93
_GROUP_PENALTY = 0.02  # attention over some of the heads fills a device less: assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTime:
    """One layout. Units: seconds, bytes.

    `step_s` is one forward pass, `low_s` to `high_s` its interval; `parts` are before `hidden_s`
    is taken off. Where two are computed at the same time (cfg), each counts for half of theirs.
    `held_bytes` is what a device needs for denoising; stages take turns.
    """

    layout: ClipLayout
    step_s: float
    low_s: float
    high_s: float
    clip_s: float
    parts: Parts
    hidden_s: float
    sent_bytes: float
    held_bytes: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "layout": {**asdict(self.layout), "text": str(self.layout)},
            "step_s": self.step_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "clip_s": self.clip_s,
            "parts_s": self.parts.as_dict(),
            "binds": self.parts.binds,
            "hidden_s": self.hidden_s,
            "sent_bytes": self.sent_bytes,
            "held_bytes": self.held_bytes,
        }


def clip_time(
    shape: ModelShape,
    facts: ClipFacts,
    layout: ClipLayout,
    rates: DeviceRates,
    exchange: Exchange,
) -> ClipTime:
    """A clip under one layout: encoding on one device, denoising and decoding on all."""
    work = Parts()
    for group in shape.phase("denoise").groups:
        for use in group.uses:
            work = work + _use_s(use, group, facts, layout, rates) * (group.num_layers * use.count)
    heads, keys = exchanged_heads(facts, layout), passed_keys(facts, layout)
    sums = reduced_rows(facts, layout)
    heads_s = transfer_s(heads, exchange, layout.tp)
    keys_s = transfer_s(keys, exchange, layout.tp * layout.ulysses)
    sums_s = transfer_s(sums, exchange)
    merge_s = _merge_s(facts, layout, rates)
    at_once = 1 / layout.cfg
    parts = (work + Parts(wire=heads_s + keys_s + sums_s, memory=merge_s)) * at_once
    hidden_s = _hidden_heads_s(layout, work, heads_s, exchange, facts.num_blocks)
    if layout.ring > 1:  # the next keys travel while the present ones are attended to
        hidden_s += min(keys_s, (work.attention - hidden_s) * (layout.ring - 1) / layout.ring)
    hidden_s *= at_once
    step_s = parts.total_s - hidden_s
    half_s = math.hypot(parts.error_s(rates.errors), _MODEL_ERROR * step_s)
    forwards = FORWARDS[shape.family]
    around_s = _networks_s(shape, "encode", rates, 1)
    around_s += _networks_s(shape, "decode", rates, layout.num_devices)
    own_rows = facts.rows / (layout.ulysses * layout.ring)
    return ClipTime(
        layout=layout,
        step_s=step_s,
        low_s=max(step_s - half_s, step_s / 4),
        high_s=step_s + half_s,
        clip_s=forwards * step_s + around_s,
        parts=parts,
        hidden_s=hidden_s,
        sent_bytes=(heads.sent_bytes + keys.sent_bytes + sums.sent_bytes) * at_once,
        held_bytes=denoiser_bytes(shape, layout) + _STREAMS * own_rows * facts.attention_width * 2,
    )


def attention_rate(rates: DeviceRates) -> tuple[float, str]:
    """Operations a second of attention over all rows, and where that comes from.

    Measured on this machine, else a share of the rate of products.
    """
    if "attention" in rates.measured:
        return rates.attention_flops_s, rates.origins["attention"]
    origin = f"{_ATTENTION_SHARE:g} of products, as one H200 takes a step of 209 frames (14.19 s)"
    return rates.dense_flops_s * _ATTENTION_SHARE, origin


def _use_s(
    use: OpUse, group: LayerGroup, facts: ClipFacts, layout: ClipLayout, rates: DeviceRates
) -> Parts:
    """Seconds of one call on the fullest rank."""
    by_rows = layout.ulysses * layout.ring
    cost, start = use.cost, Parts(latency=rates.start_s)
    if use.op == "full_attention":
        ranks = layout.tp * layout.ulysses
        share = math.ceil(facts.heads / ranks) / facts.heads / layout.ring
        return start + Parts(attention=cost.flops * share / attention_rate(rates)[0])
    is_product = use.op == "gemm" and bool(group.layers)
    cut = layout.tp if is_product or use.is_cut else 1
    moved = (cost.read_write_bytes - cost.weight_bytes) / by_rows / cut + cost.weight_bytes / cut
    flops_s = cost.flops / by_rows / cut / rates.dense_flops_s
    memory_s = moved / rates.memory_bytes_s
    return start + (Parts(gemm=flops_s) if flops_s > memory_s else Parts(memory=memory_s))


def _hidden_heads_s(
    layout: ClipLayout, work: Parts, wire_s: float, exchange: Exchange, num_blocks: int
) -> float:
    """What head groups hide of their exchange under attention, where that pays."""
    if layout.num_groups == 1:
        return 0.0
    gate = Overlap(
        compute_s=work.attention,
        wire_s=wire_s,
        num_chunks=layout.num_groups,
        penalty=_GROUP_PENALTY,
        latency_s=exchange.latency_s(layout.ulysses) * num_blocks,
    )
    return max(0.0, gate.gain_s - gate.loss_s)


def _merge_s(facts: ClipFacts, layout: ClipLayout, rates: DeviceRates) -> float:
    """Partial results of a ring are merged in fp32: two reads and a write for each pass."""
    values = facts.rows * facts.attention_width / layout.num_devices
    moved = 3 * 4 * values * (layout.ring - 1) * facts.num_blocks
    return moved / rates.memory_bytes_s


def _networks_s(shape: ModelShape, phase: str, rates: DeviceRates, num_devices: int) -> float:
    """Whole networks around the transformer; decoding goes by tiles over all devices."""
    uses = [
        use
        for found in shape.phases
        if found.name == phase
        for group in found.groups
        for use in group.uses
    ]
    return sum(
        max(
            use.cost.flops / rates.dense_flops_s / num_devices,
            use.cost.read_write_bytes / rates.memory_bytes_s,
        )
        for use in uses
    )


def denoiser_bytes(shape: ModelShape, layout: ClipLayout) -> float:
    """Weights of the transformer on one device."""
    return sum(
        group.num_layers * use.count * use.cost.weight_bytes / (layout.tp if group.layers else 1)
        for group in shape.phase("denoise").groups
        for use in group.uses
    )
