"""Bytes on the wire against the published table, and the exchanges of every machine."""

from dataclasses import replace

import pytest

from kernels.cost_model.exchange import exchange_of
from kernels.hardware.machine import load_machine, machine_names
from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.wire import distinct_ranks, transfers

GATHERED_ROW = 1200  # bytes of one token and layer, the assumption of the table
SIZE = StepSize(phase="prefill", rows=8192, context=32768)
TP = Layout(tp=8, experts="reduce")
GATHER = Layout(cp=8, experts="gather")
EXCHANGE = Layout(cp=8, experts="exchange")


def facts_of(name):
    return ModelSteps(preset(name), PlanRequest(), name).facts


def sent_kb(facts, layout, size=SIZE):
    """KB of one token that leave a rank."""
    found = transfers(facts, layout, size, GATHERED_ROW * facts.num_layers)
    return sum(transfer.sent_bytes for transfer in found) / size.rows / 1e3


def test_dense_layers_send_nothing_for_their_mlp_when_rows_are_split():
    facts = facts_of("glm-5.3")
    all_moe = replace(facts, num_moe_layers=facts.num_layers)
    dense = facts.num_layers - facts.num_moe_layers
    saved_kb = dense * 2 * 7 / 8 * 2 * facts.hidden / 1e3
    assert sent_kb(all_moe, GATHER) - sent_kb(facts, GATHER) == pytest.approx(saved_kb)


def test_int8_halves_what_layers_send_and_leaves_cached_rows():
    facts = facts_of("deepseek-v4-flash")
    int8 = replace(TP, wire="int8")
    assert sent_kb(facts, int8) == pytest.approx(sent_kb(facts, TP) * 132 / 256)


def test_a_row_reaches_as_many_ranks_as_hold_its_experts():
    assert distinct_ranks(8, 1) == pytest.approx(1.0)
    assert distinct_ranks(8, 8) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    assert distinct_ranks(1, 6) == 1.0


def test_a_decode_step_sends_two_reductions_a_layer():
    """Facts: all-reduces for each token = 2 x layers."""
    facts = facts_of("deepseek-v4-flash")
    size = StepSize(phase="decode", rows=1, context=32768, batch=1)
    found = transfers(facts, TP, size, 0.0)
    assert sum(t.count for t in found if t.operation == "all_reduce") == 2 * 43


@pytest.mark.parametrize("name", machine_names())
def test_more_link_is_never_slower_on_any_machine(name):
    machine = load_machine(name)
    exchange = exchange_of(machine)
    n = machine.num_devices
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
        for size_bytes in (1e3, 1e5, 1e7, 1e9):
            seconds = exchange.seconds(operation, size_bytes, n)
            faster = exchange.scaled(1.5).seconds(operation, size_bytes, n)
            assert faster <= seconds
            assert (seconds > 0) == (n > 1)


def test_machines_without_peer_access_go_through_the_host():
    for name in ("4x-rtx4090-nop2p", "8x-rtx5090", "8x-ascend910b", "8x-hygon"):
        exchange = exchange_of(load_machine(name))
        assert exchange.is_staged
        assert exchange.fastest("all_reduce", 1e6, 4)[1] == "host-staged"
    assert exchange_of(load_machine("8x-hygon")).assumed, "nobody has told its staged rate"
    assert not exchange_of(load_machine("8x-l40s")).is_staged


def test_island_or_flat_ring_as_the_tuners_of_two_boxes_chose():
    """FlashInfer #4870: island on eight L40S, flat ring on eight SM120 cards."""
    large = 96 * 2**20
    assert exchange_of(load_machine("8x-rtxpro6000")).fastest("all_reduce", large, 8)[1] == "ring"
    found = exchange_of(load_machine("8x-l40s"))
    island_s = 2 * 3 / 4 * large / 25.4e9 + large / 4 / 9.7e9
    assert found.seconds("all_reduce", large, 8) == pytest.approx(island_s, rel=0.03)


@pytest.mark.parametrize("name", machine_names())
def test_constants_of_links_are_in_order_on_every_machine(name):
    """Peers where they reach each other; who talks to all is never faster than to a neighbour."""
    machine = load_machine(name)
    exchange = exchange_of(machine)
    assert exchange.is_staged == (machine.links.p2p != "yes" or not machine.links.hop_bytes_s)
    for links in (exchange.inside, exchange.over):
        assert links.latency_s > 0
        assert 0 < links.fan_bytes_s <= links.ring_bytes_s
    assert exchange.over.ring_bytes_s <= exchange.inside.ring_bytes_s
