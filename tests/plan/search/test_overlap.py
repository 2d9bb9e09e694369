"""Overlap in virtual time: against the executors' own schedules, bounds, and what turns it off."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.costs import LinkCosts
from kernels.collectives.schedules.builders import LayerWork, blocking_layers, token_split
from kernels.collectives.schedules.virtual_time import link_time, simulate
from kernels.cost_model.exchange import bus_exchange, exchange_of
from kernels.cost_model.parts import Parts
from kernels.cost_model.rates import flat_rates, rates_of
from kernels.hardware.machine import load_machine
from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.overlap import Part, layers_in_chunks, virtual_s
from llm_engine.plan.search.phases import decodes, in_chunks, prefills
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepSize, exposed_parts
from llm_engine.plan.search.serving_plan import Workload

V4 = ModelSteps(preset("deepseek-v4-flash"), PlanRequest(cache="fp8"), "deepseek-v4-flash")
DENSE = ModelSteps(preset("qwen3-0.6b"), PlanRequest(), "qwen3-0.6b")
SIZE = StepSize(phase="prefill", rows=8192, context=8192)
TP = Layout(tp=8, experts="reduce")
SECONDS = st.sampled_from([0.0, 1e-3, 0.4, 1.0, 2.5])


def bus(gb_s, flops_s=100e12, **links):
    """A machine of eight devices that do everything at one rate, on one bus."""
    return Setting(
        rates=flat_rates(flops_s, 1e18, 0),
        exchange=bus_exchange(gb_s * 1e9, **links),
        num_devices=8,
    )


@st.composite
def layers(draw):
    names = ("project", "attend", "mlp")
    return tuple(
        Part(name=name, compute_s=draw(SECONDS) + 1e-6, wire_s=draw(SECONDS)) for name in names
    )


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
def test_it_is_the_schedule_that_the_executors_run(num_chunks):
    """Tensor parallelism: the token split of the collectives, node for node in time."""
    bytes_s, num_layers, attention_s, mlp_s, wire_bytes = 1e9, 5, 3e-3, 2e-3, 4_000_000
    work = LayerWork(attention_s=attention_s, mlp_s=mlp_s, wire_bytes=wire_bytes)
    costs = LinkCosts(latency_s=0.0, ring_bytes_s=bytes_s, fan_bytes_s=bytes_s)
    split = token_split(2, [work] * num_layers, [1 / num_chunks] * num_chunks)
    wire_s = wire_bytes / bytes_s / num_chunks
    parts = (
        Part(name="attend", compute_s=attention_s / num_chunks, wire_s=wire_s),
        Part(name="mlp", compute_s=mlp_s / num_chunks, wire_s=wire_s),
    )
    expected_s = simulate(split, link_time(costs)).duration_s
    assert virtual_s(parts, num_layers, num_chunks) == pytest.approx(expected_s)
    if num_chunks == 1:
        blocking = simulate(blocking_layers(2, [work] * num_layers), link_time(costs))
        assert expected_s == pytest.approx(blocking.duration_s)


@settings(max_examples=40, deadline=None)
@given(parts=layers(), num_layers=st.integers(9, 50), num_chunks=st.sampled_from([2, 4]))
def test_eight_layers_stand_for_all(parts, num_layers, num_chunks):
    wires_s = {part.name: part.wire_s for part in parts}
    whole = simulate(
        layers_in_chunks(parts, num_layers, num_chunks),
        lambda node: wires_s[node.name.removeprefix("wire ").partition(".")[0]],
    )
    assert virtual_s(parts, num_layers, num_chunks) == pytest.approx(whole.duration_s, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(parts=layers(), num_layers=st.integers(1, 30), num_chunks=st.sampled_from([1, 2, 4]))
def test_it_lies_between_its_longer_side_and_all_in_turn(parts, num_layers, num_chunks):
    found_s = virtual_s(parts, num_layers, num_chunks)
    times = num_layers * num_chunks
    computed_s = times * sum(part.compute_s for part in parts)
    sent_s = times * sum(part.wire_s for part in parts)
    assert max(computed_s, sent_s) * (1 - 1e-9) <= found_s
    assert found_s <= (computed_s + sent_s) * (1 + 1e-9)
    if num_chunks == 1:
        assert found_s == pytest.approx(computed_s + sent_s)


def test_where_both_sides_are_equal_two_halves_hide_almost_everything():
    """Without costs of cutting: what stays uncovered are the ends, and parts that are not alike."""
    at_10 = predict_step(V4, bus(10), TP, SIZE).parts
    even = bus(10 * at_10.wire / at_10.compute_s)
    plain = predict_step(V4, even, TP, SIZE)
    assert plain.parts.wire == pytest.approx(plain.parts.compute_s, rel=1e-6)
    halves = predict_step(V4, even, replace(TP, num_chunks=2), SIZE)
    assert 1.7 < plain.seconds / halves.seconds <= 2.0


@pytest.mark.parametrize("latency_s", [1e-6, 1e-4, 1e-2])
def test_it_is_off_below_its_break_even_and_says_both_times(latency_s):
    """Every chunk starts its own exchanges: a start that takes longer than it hides is refused."""
    setting = bus(400, latency_s=latency_s)
    plain = predict_step(V4, setting, TP, SIZE)
    cut = predict_step(V4, setting, replace(TP, num_chunks=4), SIZE)
    starts_s = 3 * plain.parts.latency
    assert (cut.hidden_s == 0) == (starts_s > plain.parts.wire + plain.parts.latency)
    assert cut.seconds <= plain.seconds
    word = "on" if cut.hidden_s else "off, below break-even"
    assert cut.reasons[0].startswith(f"overlap {word}: 4 chunks take")
    chosen = in_chunks(V4, setting, plain)
    assert (chosen.layout.num_chunks > 1) == (chosen.hidden_s > 0)
    assert chosen.reasons, "on or off, the plan says why"


def test_smaller_products_cost_what_they_cost():
    """Where few rows fill a device badly, cutting loses more than a fast link lets it hide."""
    slow = replace(flat_rates(100e12, 1e18, 0), half_rows=4096.0)
    setting = replace(bus(2000), rates=slow)
    found = predict_step(V4, setting, replace(TP, num_chunks=4), SIZE)
    assert found.hidden_s == 0
    assert "below break-even" in found.reasons[0]


def test_gathered_keys_of_a_dense_model_hide_under_the_next_rows():
    """Context parallelism exchanges nothing but keys and values, before attention."""
    layout = Layout(cp=8, experts="dense")
    plain = predict_step(DENSE, bus(5), layout, SIZE)
    halves = predict_step(DENSE, bus(5), replace(layout, num_chunks=2), SIZE)
    assert plain.parts.wire > 0
    assert 0 < halves.hidden_s <= min(plain.parts.wire, plain.parts.compute_s)


def test_a_few_runs_in_chunks_find_what_running_all_finds():
    """Of every set of weights, the search tries three; the best of all is hardly better."""
    machine = load_machine("8x-l40s")
    setting = Setting(
        rates=rates_of(machine, has_fp8_math=True), exchange=exchange_of(machine), num_devices=8
    )
    found, _ = prefills(V4, setting, Workload(prompt_tokens=16384, chunk=8192))
    tried = [p for p in found if p.reasons]
    assert 0 < len(tried) < sum(p.layout.width > 1 for p in found)
    for key in {p.layout.weights_key for p in found}:
        same = [p for p in found if p.layout.weights_key == key]
        best_s = min(in_chunks(V4, setting, p).seconds for p in same)
        assert min(p.seconds for p in same) <= best_s * 1.01


@settings(max_examples=60, deadline=None)
@given(compute=SECONDS, wire=SECONDS, share=st.floats(0, 1))
def test_what_is_hidden_is_the_shorter_side(compute, wire, share):
    """The rest adds up to the step, and the longer side's errors stay whole."""
    parts = Parts(gemm=0.75 * compute, memory=0.25 * compute, wire=wire, latency=1e-3)
    hidden_s = share * min(compute, wire)
    left = exposed_parts(parts, hidden_s)
    assert left.total_s == pytest.approx(parts.total_s - hidden_s)
    if wire < compute:
        assert (left.gemm, left.memory) == (parts.gemm, parts.memory)
    elif hidden_s:
        assert left.wire == parts.wire
    assert left.latency == parts.latency


def test_a_wire_whose_rate_was_told_has_the_smaller_error():
    """A latency that nobody told makes no rate unsure."""
    for name, is_told in (("8x-l40s", True), ("8x-hygon", False)):
        machine = load_machine(name)
        setting = Setting(
            rates=rates_of(machine, has_fp8_math=True), exchange=exchange_of(machine), num_devices=8
        )
        assert setting.exchange.assumed
        assert setting.errors.wire == (setting.rates.errors.wire if is_told else 0.5)


@pytest.mark.parametrize(("num_clients", "is_cut"), [(8, False), (1024, True)])
def test_many_answers_are_decoded_in_micro_batches_where_that_pays(num_clients, is_cut):
    """Few are bound by the weights, which each micro-batch reads again."""
    work = Workload(prompt_tokens=64, answer_tokens=64, num_clients=num_clients)
    found, _ = decodes(DENSE, bus(2.0), work)
    cut = [p for p in found if p.layout.num_chunks > 1]
    assert bool(cut) is is_cut
    for prediction in cut:
        plain = replace(prediction.layout, num_chunks=1)
        whole = predict_step(DENSE, bus(2.0), plain, prediction.size)
        assert whole.seconds / 2 < prediction.seconds < whole.seconds
        assert prediction.layout.pp == 1


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(16, 4096), gb_s=st.floats(0.5, 500))
def test_micro_batches_are_never_slower_and_never_hide_more_than_half(rows, gb_s):
    size = StepSize(phase="decode", rows=rows, context=2048, batch=rows)
    setting, layout = bus(gb_s), Layout(tp=8, experts="dense")
    whole = predict_step(DENSE, setting, layout, size)
    found = in_chunks(DENSE, setting, whole)
    assert whole.seconds / 2 <= found.seconds <= whole.seconds * (1 + 1e-9)
