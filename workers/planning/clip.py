"""The layouts part of `plan` for a video model: clip times of each layout, as values and tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernels.errors import KernelError
from kernels.hardware.errors import HardwareError
from kernels.plan_formats import choose_formats
from llm_engine.plan import families as llm
from video_engine.errors import VideoError
from video_engine.plan import families as video
from video_engine.plan.clip_plan import ClipPlan, plan_clip
from video_engine.plan.clip_time import FORWARDS, ClipTime
from video_engine.plan.request import ClipRequest
from workers.planning.inputs import (
    EXIT_DOES_NOT_FIT,
    PlanFailed,
    PlanSizes,
    find_machine,
    find_model,
)
from workers.planning.measured import NOT_HERE, basis_text, measured_here
from workers.planning.plan_tables import amount, print_table

if TYPE_CHECKING:
    from kernels.cost_model.calibrated import MeasuredRates
    from kernels.hardware.machine import Machine

_UNVERIFIED = "between devices unverified"
_NOT_YET = "planned: this version divides branches and tokens alone"
_NONE_FITS = "no: what it runs, branches and tokens on ranks of their own, does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """What was found for one machine, and for the one it is compared with."""

    model: str
    machine: str
    num_devices: int
    plan: ClipPlan
    against: str
    other: ClipPlan | None
    price_per_hour: float
    calibration: str  # which table is behind the figures, or why none is

    @property
    def remedy(self) -> str:
        """Why nothing fits and what would; empty where something does."""
        plan = self.plan
        if plan.chosen:
            return ""
        return (
            f"does not fit: the smallest layout needs {plan.needed_bytes / 1e9:.1f} GB on each "
            f"device of {plan.device_bytes / 1e9:.1f} GB. What would: devices of "
            f"{plan.needed_bytes / 1e9:.0f} GB, more devices, weights of fewer bits, or a smaller "
            "clip."
        )

    @property
    def cost_per_clip(self) -> float | None:
        """Price of a clip when the machine is always busy."""
        if not self.price_per_hour or not self.plan.chosen:
            return None
        return self.price_per_hour * self.plan.chosen.clip_s / 3600

    @property
    def runs_today(self) -> bool:
        """Whether this version runs the chosen layout."""
        return self.plan.chosen is not None and self.plan.chosen.layout.setting is not None

    @property
    def exit_code(self) -> int:
        """4 where it does not fit."""
        return 0 if self.plan.chosen else EXIT_DOES_NOT_FIT

    def show(self) -> None:
        """The layout and the clip's time; on stderr why it does not fit."""
        if self.plan.chosen is None:
            sys.stderr.write(f"lanewise plan: {self.model} {self.remedy}\n")
            return
        basis = self.plan.basis.word
        title = f"{self.model}: time of a clip, predicted from {basis} rates, with intervals"
        print_table(title, ("", ""), [*_rows(self, self.plan.chosen)])
        others = self.plan.others
        passed = [(str(t.layout), f"{t.clip_s:,.0f} s", _why_not(t, self)) for t in others]
        print_table("not taken", ("layout", "clip", "why"), passed[:12])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        chosen = self.plan.chosen
        basis = self.plan.basis
        rests_on = {
            "rates": {
                "basis": basis.word,
                **asdict(basis),
                "used": [asdict(rate) for rate in self.plan.rates],
            },
            "calibration": self.calibration,
        }
        if not chosen:
            return {"fits": False, "reason": self.remedy, **rests_on}
        return {
            "fits": True,
            **rests_on,
            "chosen": chosen.as_dict(),
            "runs_today": self.runs_today,
            "today": self.plan.today and self.plan.today.as_dict(),
            "forwards": self.plan.forwards,
            "others": [time.as_dict() for time in self.plan.others],
            "marginal": dict(self.plan.marginal),
            "cost_per_clip": self.cost_per_clip,
            "against": _gap(self),
            "assumed": list(basis.assumed),
        }


def clip_of(options: argparse.Namespace, sizes: PlanSizes) -> Clip | None:
    """The layouts of a video model of a known number of steps; None for others.

    Raises: PlanFailed.
    """
    try:
        name, raw = find_model(options.model)
        if llm.is_language_model(raw):
            return None
        machine = find_machine(options.machine)
        other = find_machine(options.against) if options.against else None
        measured, calibration = None, NOT_HERE
        if not options.machine:
            measured, calibration = measured_here(options.data)
        plan = _one(name, raw, machine, sizes, measured)
        return plan and Clip(
            model=name,
            machine=options.machine,
            num_devices=machine.num_devices,
            plan=plan,
            against=options.against,
            other=_one(name, raw, other, sizes) if other else None,
            price_per_hour=options.price_per_hour,
            calibration=calibration,
        )
    except (HardwareError, VideoError, KernelError, ValueError) as error:
        raise PlanFailed(str(error)) from error


def _one(
    name: str,
    raw: dict[str, Any],
    machine: Machine,
    sizes: PlanSizes,
    measured: MeasuredRates | None = None,
) -> ClipPlan | None:
    formats = choose_formats(machine, is_quantised=False, asked_cache=sizes.cache)
    clip = ClipRequest(
        width=sizes.width, height=sizes.height, num_frames=sizes.num_frames, dtype=formats.dtype
    )
    shape = video.describe(raw, clip, name=name)
    return plan_clip(shape, machine, measured) if shape.family in FORWARDS else None


def _rows(found: Clip, chosen: ClipTime) -> Iterator[tuple[str, str]]:
    total = chosen.parts.total_s
    shares = sorted(chosen.parts.as_dict().items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {s / total:.0%}" for name, s in shares if s / total >= 0.005)
    setting = chosen.layout.setting
    said = _NOT_YET if setting is None else f"LANEWISE_VIDEO_LAYOUT={setting}; {_UNVERIFIED}"
    yield "layout", f"{chosen.layout}" + (f" ({said})" if found.num_devices > 1 else "")
    if setting is None:
        yield "runs today", _today(found.plan.today, chosen)
    yield "step", f"{chosen.step_s:.2f} s [{chosen.low_s:.2f}..{chosen.high_s:.2f}]"
    yield "clip", f"{chosen.clip_s:,.0f} s, {found.plan.forwards} passes of the transformer"
    hidden = f"; {chosen.hidden_s / total:.0%} hidden" if chosen.hidden_s else ""
    yield "time in", named + hidden
    yield "sent by a rank", f"{chosen.sent_bytes / 1e9:.1f} GB a step"
    yield (
        "memory",
        f"{chosen.held_bytes / 1e9:.1f} GB of {found.plan.device_bytes / 1e9:.1f} GB on each "
        "device while it denoises; encoders and decoders take turns with it",
    )
    yield "10 % more of", ", ".join(f"{k} {gain:+.1%}" for k, gain in found.plan.marginal.items())
    if (cost := found.cost_per_clip) is not None:
        yield "price", f"{cost:.3g} for a clip"
    if found.other is not None:
        yield f"against {found.against}", str(_gap(found)["text"])
    if (equal := found.plan.equal) is not None:
        gain = chosen.step_s / equal.step_s - 1
        yield "note", f"not preferred: {equal.layout} gains {gain:.0%}, less than the error"
    for rate in found.plan.rates:
        yield f"rate of {rate.name}", f"{amount(rate.per_s, rate.unit)} a device: {rate.origin}"
    yield "confidence", basis_text(found.plan.basis, found.calibration)


def _today(today: ClipTime | None, chosen: ClipTime) -> str:
    """The best layout that this version runs, and what it takes longer than the chosen one."""
    if today is None:
        return _NONE_FITS
    longer = today.clip_s / chosen.clip_s - 1
    setting = f"LANEWISE_VIDEO_LAYOUT={today.layout.setting}"
    return f"{setting}: {today.clip_s:,.0f} s a clip ({longer:+.0%}); {_UNVERIFIED}"


def _why_not(time: ClipTime, found: Clip) -> str:
    if time.held_bytes > found.plan.device_bytes:
        return f"needs {time.held_bytes / 1e9:.0f} GB on each device"
    return f"{time.step_s:.2f} s a step, {time.parts.binds} binds"


def _gap(found: Clip) -> dict[str, Any]:
    """How the machine compares with the other one."""
    if found.other is None or found.plan.chosen is None:
        return {}
    if found.other.chosen is None:
        needed_gb = found.other.needed_bytes / 1e9
        return {"fits": False, "text": f"does not fit there: devices of {needed_gb:.0f} GB would"}
    ratio = found.other.chosen.clip_s / found.plan.chosen.clip_s
    return {"fits": True, "clip_ratio": ratio, "text": f"{ratio:.2f} times as fast"}
