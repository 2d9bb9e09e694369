"""Which layout of a video model to take on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.cost_model.basis import RatesBasis, basis_of
from kernels.cost_model.exchange import Exchange, exchange_of
from kernels.cost_model.rates import DeviceRates, rates_of
from video_engine.plan.clip_layout import ClipFacts, clip_facts, clip_layouts
from video_engine.plan.clip_time import (
    BRANCHES,
    FORWARDS,
    ClipTime,
    attention_rate,
    clip_time,
)

if TYPE_CHECKING:
    from kernels.cost_model.calibrated import MeasuredRates
    from kernels.hardware.machine import Machine
    from kernels.layer_groups import ModelShape

_RESERVED_SHARE, _RESERVED_BYTES = 0.04, 1.0e9  # fragmentation; driver and libraries: assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class RateUsed:
    """One rate behind a clip's time, and where it comes from. Units: operations or bytes/second."""

    name: str
    per_s: float
    unit: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan:
    """The layout of the shortest clip, those passed over (fastest first), and what it rests on.

    `chosen` is None where no layout fits: `needed_bytes` of a device would. `equal` is a faster
    layout whose gain is below the error of the comparison. `today` is the best that this version
    runs, None where none of those fits.
    """

    chosen: ClipTime | None
    others: tuple[ClipTime, ...]
    equal: ClipTime | None
    today: ClipTime | None
    forwards: int
    device_bytes: int
    needed_bytes: float
    marginal: Mapping[str, float]
    basis: RatesBasis
    rates: tuple[RateUsed, ...]


def plan_clip(
    shape: ModelShape, machine: Machine, measured: MeasuredRates | None = None
) -> ClipPlan:
    """Every layout of a clip on a machine; `measured` are rates of this very machine.

    Raises: KeyError for a family without FORWARDS; ValueError for a model with no attention over
    its rows.
    """
    rates = rates_of(machine, has_fp8_math=False, measured=measured)
    exchange = exchange_of(machine)
    facts = clip_facts(shape)
    layouts = clip_layouts(facts, machine.num_devices, BRANCHES[shape.family])
    times = sorted(
        (clip_time(shape, facts, layout, rates, exchange) for layout in layouts),
        key=lambda time: time.clip_s,
    )
    room = rates.memory_bytes * (1 - _RESERVED_SHARE) - _RESERVED_BYTES
    fitting = [time for time in times if time.held_bytes <= room]
    chosen = _simplest(fitting, rates) if fitting else None
    today = chosen
    if chosen is not None and chosen.layout.setting is None:
        running = [time for time in fitting if time.layout.setting is not None]
        today = _simplest(running, rates) if running else None
    best = fitting[0] if fitting else None
    return ClipPlan(
        chosen=chosen,
        others=tuple(time for time in times if time is not chosen),
        equal=best if best is not chosen else None,
        today=today,
        forwards=FORWARDS[shape.family],
        device_bytes=rates.memory_bytes,
        needed_bytes=min(t.held_bytes for t in times) + rates.memory_bytes - room,
        marginal=_marginal(shape, facts, chosen, rates, exchange) if chosen else {},
        basis=basis_of(rates, exchange),
        rates=_rates_used(rates),
    )


def _rates_used(rates: DeviceRates) -> tuple[RateUsed, ...]:
    attention_s, origin = attention_rate(rates)
    return (
        RateUsed(
            name="products",
            per_s=rates.dense_flops_s,
            unit="FLOP/s",
            origin=rates.origins["dense"],
        ),
        RateUsed(name="attention", per_s=attention_s, unit="FLOP/s", origin=origin),
        RateUsed(
            name="memory", per_s=rates.memory_bytes_s, unit="B/s", origin=rates.origins["memory"]
        ),
    )


def _simplest(times: list[ClipTime], rates: DeviceRates) -> ClipTime:
    """The simplest layout that the fastest does not beat by more than the error.

    Of those, one that this version runs.
    """
    best = times[0]
    equal = [
        time
        for time in times
        if time.step_s - best.step_s <= time.parts.difference_error_s(best.parts, rates.errors)
    ]
    return min(equal, key=lambda t: (t.layout.setting is None, t.layout.complexity, t.step_s))


def _marginal(
    shape: ModelShape,
    facts: ClipFacts,
    chosen: ClipTime,
    rates: DeviceRates,
    exchange: Exchange,
) -> dict[str, float]:
    """Relative gain of a clip with ten per cent more of a resource, by finite differences."""

    def gain(more: DeviceRates, links: Exchange) -> float:
        return chosen.clip_s / clip_time(shape, facts, chosen.layout, more, links).clip_s - 1

    return {
        "link": gain(rates, exchange.scaled(1.1)),
        "flops": gain(rates.scaled(flops=1.1), exchange),
        "memory rate": gain(rates.scaled(memory=1.1), exchange),
    }
