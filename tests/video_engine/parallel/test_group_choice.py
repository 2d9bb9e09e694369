"""Head groups where nobody asked: one on a CPU, the planner's shortest forward on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine
from video_engine.parallel.check import CheckedLayout
from video_engine.parallel.families import FAMILIES
from video_engine.parallel.group_choice import choose_groups, planned_groups
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.needs import Needs
from video_engine.plan.clip_layout import clip_facts
from video_engine.plan.clip_time import clip_time
from video_engine.plan.families import describe, preset
from video_engine.plan.request import ClipRequest


def checked(text: str, frames: int = 124) -> CheckedLayout:
    name = "minimax-h3"
    shape = describe(preset(name), ClipRequest(num_frames=frames), name=name)
    return CheckedLayout(
        layout=VideoLayout.parse(text),
        family=FAMILIES["MiniMaxH3ModularPipeline"],
        needs=Needs(shape=shape, facts=clip_facts(shape)),
    )


@pytest.mark.parametrize("machine", ["8x-rtxpro6000", "8x-l40s", "4x-rtx4090-nop2p"])
@pytest.mark.parametrize("frames", [22, 124, 345])
def test_no_other_number_is_predicted_faster(machine: str, frames: int) -> None:
    found = load_machine(machine)
    laid = checked(f"ulysses{found.num_devices}", frames)
    chosen = planned_groups(laid, found)
    rates, exchange = rates_of(found, has_fp8_math=False), exchange_of(found)
    times = {
        number: clip_time(
            laid.needs.shape,
            laid.needs.facts,
            replace(laid.layout.clip, num_groups=number),
            rates,
            exchange,
        ).step_s
        for number in (1, 4)
    }
    assert times[chosen.num_groups] == min(times.values())
    assert "predicted forward" in chosen.reason


def test_long_clips_over_slow_links_are_overlapped() -> None:
    assert planned_groups(checked("ulysses4", 345), load_machine("4x-rtx4090-nop2p")).num_groups > 1


def test_a_rank_of_one_head_has_one_group() -> None:
    found = planned_groups(checked("ulysses56"), load_machine("8x-rtxpro6000"))
    assert (found.num_groups, found.reason) == (1, "a rank has one head")


def test_on_a_cpu_one_group_unless_asked() -> None:
    cpu = torch.device("cpu")
    assert choose_groups(checked("ulysses2"), cpu).num_groups == 1
    asked = choose_groups(checked("ulysses2,groups7"), cpu)
    assert (asked.num_groups, asked.source) == (7, "explicit")
