"""Layouts of a video model: bytes sent, published times, what must only get better, refusals."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine, machine_names
from video_engine.parallel.layout import VideoLayout
from video_engine.plan.clip_layout import (
    ClipLayout,
    clip_facts,
    clip_layouts,
    exchanged_heads,
    passed_keys,
    reduced_rows,
)
from video_engine.plan.clip_plan import plan_clip
from video_engine.plan.clip_time import clip_time
from video_engine.plan.families import describe, preset
from video_engine.plan.request import ClipRequest


def shape_of(frames, name="minimax-h3"):
    return describe(preset(name), ClipRequest(num_frames=frames), name=name)


SHAPE = shape_of(362)
FACTS = clip_facts(SHAPE)


def test_ulysses_sends_what_was_published():
    """15 s on eight ranks: 34.3 GB leave each rank per step at 109k rows; ours has more rows."""
    sent = exchanged_heads(FACTS, ClipLayout(ulysses=8)).sent_bytes
    assert sent * 109_400 / FACTS.rows == pytest.approx(34.3e9, rel=0.01)


def test_ring_and_tensor_parallelism_send_more_than_ulysses():
    """Keys and values pass every rank; sums move every row: both grow where Ulysses shrinks."""
    ulysses = exchanged_heads(FACTS, ClipLayout(ulysses=8)).sent_bytes
    assert passed_keys(FACTS, ClipLayout(ring=8)).sent_bytes == pytest.approx(4 * ulysses)
    reduced = reduced_rows(FACTS, ClipLayout(tp=8)).sent_bytes
    assert reduced == pytest.approx(ulysses * 8 * FACTS.width / FACTS.attention_width)


def test_what_one_layout_does_not_exchange_is_nothing():
    one = ClipLayout()
    for transfer in (exchanged_heads, passed_keys, reduced_rows):
        assert transfer(FACTS, one).sent_bytes == 0


@pytest.mark.parametrize(
    ("frames", "machine", "published_s"),
    [
        (209, "1x-h200", 14.19),  # one H200, 8.7 s
        (124, "8x-rtxpro6000", 90.5 / 49),  # eight PRO 6000, 5 s, 50 grid points
    ],
)
def test_published_times_lie_within_the_interval(frames, machine, published_s):
    chosen = plan_clip(shape_of(frames), load_machine(machine)).chosen
    assert chosen.low_s <= published_s <= chosen.high_s
    assert chosen.step_s == pytest.approx(published_s, rel=0.25)


@settings(max_examples=40, deadline=None)
@given(
    layout=st.sampled_from(clip_layouts(FACTS, 8)),
    machine=st.sampled_from([m for m in machine_names() if m.startswith("8x")]),
    more=st.floats(1.0, 8.0),
)
def test_more_of_anything_is_never_slower(layout, machine, more):
    found = load_machine(machine)
    rates, exchange = rates_of(found, has_fp8_math=False), exchange_of(found)
    base = clip_time(SHAPE, FACTS, layout, rates, exchange)
    for better in (
        clip_time(SHAPE, FACTS, layout, rates, exchange.scaled(more)),
        clip_time(SHAPE, FACTS, layout, rates.scaled(flops=more), exchange),
        clip_time(SHAPE, FACTS, layout, rates.scaled(memory=more), exchange),
    ):
        assert better.clip_s <= base.clip_s * (1 + 1e-9)
    assert 0 <= base.hidden_s <= base.parts.wire
    assert base.low_s <= base.step_s <= base.high_s


@pytest.mark.parametrize("name", machine_names())
def test_what_is_chosen_fits_every_machine(name):
    machine = load_machine(name)
    found = plan_clip(shape_of(0), machine)
    if found.chosen is None:
        assert found.needed_bytes > found.device_bytes
        return
    assert found.chosen.layout.num_devices == machine.num_devices
    assert found.chosen.held_bytes < found.device_bytes
    assert found.basis.assumed
    assert all(gain >= -1e-9 for gain in found.marginal.values())


def test_the_layouts_chosen_are_those_recorded():
    """24 GB cards hold a quarter of the weights, 48 GB cards half, larger ones all of them."""
    recorded = {"4x-rtx4090-nop2p": 4, "8x-l40s": 2, "8x-rtxpro6000": 1, "8x-a100-pcie": 1}
    chosen = {name: plan_clip(shape_of(0), load_machine(name)).chosen for name in recorded}
    assert {name: time.layout.tp for name, time in chosen.items()} == recorded


def test_less_tensor_parallelism_is_faster_as_reported():
    """On eight cards of another kind, TP2 + Ulysses 4 was 12 % faster than TP4 + Ulysses 2."""
    machine = load_machine("8x-rtxpro6000")
    rates, exchange = rates_of(machine, has_fp8_math=False), exchange_of(machine)
    found = [
        clip_time(shape_of(124), clip_facts(shape_of(124)), layout, rates, exchange).step_s
        for layout in (ClipLayout(tp=2, ulysses=4), ClipLayout(tp=4, ulysses=2))
    ]
    assert 1.0 < found[1] / found[0] < 1.4


def test_heads_bound_the_divisions():
    few = replace(FACTS, heads=6)
    assert all(x.ulysses * x.tp <= 6 and 6 % x.tp == 0 for x in clip_layouts(few, 8))
    assert any(x.ring == 8 for x in clip_layouts(few, 8))


def test_a_clip_too_long_for_the_cards_is_refused():
    found = plan_clip(shape_of(362), load_machine("laptop-cpu"))
    assert found.chosen is None
    assert found.needed_bytes > 60e9


def test_branches_of_guidance_on_devices_of_their_own_halve_what_they_exchange():
    """Half of the devices share a branch's rows: twice the rows stay, for half of the passes."""
    shape = shape_of(81, "wan2.2-i2v-a14b")
    facts, machine = clip_facts(shape), load_machine("8x-rtxpro6000")
    rates, exchange = rates_of(machine, has_fp8_math=False), exchange_of(machine)
    alone, both = (
        clip_time(shape, facts, layout, rates, exchange)
        for layout in (ClipLayout(ulysses=8), ClipLayout(cfg=2, ulysses=4))
    )
    assert both.sent_bytes == pytest.approx(alone.sent_bytes * (3 / 4) / (7 / 8))
    assert both.parts.attention == pytest.approx(alone.parts.attention)
    assert both.step_s < alone.step_s
    found = plan_clip(shape, machine)
    assert both in (found.chosen, *found.others)


def test_a_model_without_guidance_has_no_branches_to_divide():
    found = plan_clip(shape_of(0), load_machine("8x-rtxpro6000"))
    assert {time.layout.cfg for time in (found.chosen, *found.others)} == {1}


@pytest.mark.parametrize("name", ["minimax-h3", "wan2.2-i2v-a14b", "wan2.2-ti2v-5b"])
@pytest.mark.parametrize("machine", machine_names())
def test_what_runs_today_is_a_layout_of_the_engine_that_fits(name, machine):
    found = plan_clip(shape_of(0, name), load_machine(machine))
    if found.today is None:
        fitting = [t for t in (found.chosen, *found.others) if t and t.layout.setting is not None]
        assert all(t.held_bytes > 0.8 * found.device_bytes for t in fitting)
        return
    setting = found.today.layout.setting
    assert setting is not None
    assert found.today.held_bytes < found.device_bytes
    assert found.chosen is not None
    if setting:  # more than one device
        assert VideoLayout.parse(setting).clip == found.today.layout
    if found.chosen.layout.setting is not None:
        assert found.today == found.chosen
