"""Into how many groups a rank's heads are cut: asked for, planned, or one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from video_engine.plan.clip_time import FORWARDS, clip_time

if TYPE_CHECKING:
    import torch

    from kernels.hardware.machine import Machine
    from video_engine.parallel.check import CheckedLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """The number, who chose it ("explicit" or "default"), and why."""

    num_groups: int
    source: str
    reason: str


def choose_groups(checked: CheckedLayout, device: torch.device) -> GroupChoice:
    """What was asked for; else one group on a CPU, and on devices what the planner takes."""
    layout = checked.layout
    if layout.groups is not None:
        return GroupChoice(num_groups=layout.groups, source="explicit", reason="asked for")
    if layout.ulysses == 1:
        return GroupChoice(num_groups=1, source="default", reason="heads do not travel")
    if device.type == "cpu":
        return GroupChoice(
            num_groups=1,
            source="default",
            reason="on a CPU an exchange takes the cores that attention would hide it under; "
            "groups2 in the layout asks for overlap",
        )
    from kernels.hardware.detect import detect

    return planned_groups(checked, detect().machine)


def planned_groups(checked: CheckedLayout, machine: Machine) -> GroupChoice:
    """The number that the planner's clip is shortest with, of one and its own overlapped form."""
    clip = checked.layout.clip
    most = min(4, checked.most_heads)
    if checked.needs.shape.family not in FORWARDS or most == 1:
        reason = "a rank has one head" if most == 1 else "no plan covers this model's clips"
        return GroupChoice(num_groups=1, source="default", reason=reason)
    rates, exchange = rates_of(machine, has_fp8_math=False), exchange_of(machine)
    needs = checked.needs
    times = {
        number: clip_time(
            needs.shape, needs.facts, replace(clip, num_groups=number), rates, exchange
        )
        for number in (1, most)
    }
    best = min(times, key=lambda number: (times[number].step_s, number))
    told = ", ".join(f"{n} group{'s' * (n > 1)} {t.step_s:.3g} s" for n, t in times.items())
    return GroupChoice(
        num_groups=best, source="default", reason=f"predicted forward: {told}, unmeasured"
    )
