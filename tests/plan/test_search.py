"""Layouts: the published wire tables, what must only get better, what is chosen and refused."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine, machine_names
from kernels.plan_formats import choose_formats
from llm_engine.plan.families import is_quantised, preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.candidates import layouts
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.memory import memory_use
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.serving import plan_serving
from llm_engine.plan.search.serving_plan import DoesNotFit, ServingPlan, Workload
from llm_engine.plan.search.wire import transfers

MODELS = ("deepseek-v4-flash", "deepseek-v4.1-flash", "glm-5.3", "qwen3-30b-a3b")
STEPS = {name: ModelSteps(preset(name), PlanRequest(cache="fp8"), name) for name in MODELS}
TP = Layout(tp=8, experts="columns")
GATHER = Layout(cp=8, experts="gather")
EXCHANGE = Layout(cp=8, experts="exchange")
WORST_ROW = 1200  # bytes of a token and layer that the published table assumes


def setting_of(machine):
    return Setting(
        rates=rates_of(machine, has_fp8_math=True),
        exchange=exchange_of(machine),
        num_devices=machine.num_devices,
    )


def plan_of(model, machine_name, **work):
    raw, machine = preset(model), load_machine(machine_name)
    formats = choose_formats(machine, is_quantised=is_quantised(raw))
    request = PlanRequest(
        dtype=formats.dtype, cache=formats.cache, has_fp8_math=formats.has_fp8_math
    )
    return plan_serving(raw, request, machine, Workload(**work), name=model)


def sent_kb(model, layout, row_bytes):
    facts = replace(STEPS[model].facts, num_moe_layers=STEPS[model].facts.num_layers)
    size = StepSize(phase="prefill", rows=8192, context=8192)
    moved = transfers(facts, layout, size, row_bytes * facts.num_layers)
    return sum(t.sent_bytes for t in moved) / size.rows / 1e3


@pytest.mark.parametrize(
    ("model", "layout", "published"),
    [
        ("deepseek-v4-flash", TP, 1233),
        ("deepseek-v4-flash", GATHER, 662),
        ("deepseek-v4-flash", EXCHANGE, 385),
        ("glm-5.3", TP, 3355),
        ("glm-5.3", GATHER, 1759),
        ("glm-5.3", EXCHANGE, 1183),
    ],
)
def test_bytes_that_leave_a_rank_are_those_published(model, layout, published):
    """The table counts every layer as one with experts."""
    assert sent_kb(model, layout, WORST_ROW) == pytest.approx(published, abs=0.6)


@pytest.mark.parametrize(
    ("gb_s", "v4", "glm"),
    [
        (3, (2433, 4534, 3897), (894, 1705, 1268)),
        (15, (12166, 22672, 19484), (4471, 8527, 6340)),
        (50, (40555, 75575, 64945), (14905, 28422, 21135)),
    ],
)
def test_ceilings_of_the_wire_alone_are_those_published(gb_s, v4, glm):
    """Rate over bytes; everything of an exchange of experts at half the rate."""
    for model, published in (("deepseek-v4-flash", v4), ("glm-5.3", glm)):
        for layout, expected in zip((TP, GATHER, EXCHANGE), published, strict=True):
            share = 0.5 if layout is EXCHANGE else 1.0
            found = gb_s * 1e6 * share / sent_kb(model, layout, WORST_ROW)
            assert found == pytest.approx(expected, rel=0.001)


def test_rates_of_links_follow_what_was_measured():
    """Flat rings over both sockets: 20.75 and 49.6 GB/s; all-reduce without peers: 28 GB/s."""
    size = 1 << 30
    for name, measured, error in (("8x-l40s", 20.75, 0.02), ("8x-rtxpro6000", 49.6, 0.02)):
        over = exchange_of(load_machine(name)).over
        assert over.ring_bytes_s / 1e9 == pytest.approx(measured, rel=error)
    seconds = exchange_of(load_machine("8x-rtx5090")).seconds("all_reduce", size, 8)
    assert 1.75 * size / seconds / 1e9 == pytest.approx(28, rel=0.05)


def test_without_peers_every_exchange_is_staged():
    exchange = exchange_of(load_machine("8x-rtx5090"))
    assert exchange.fastest("all_reduce", 1e6, 8)[1] == "host-staged"
    assert exchange_of(load_machine("8x-l40s")).fastest("all_reduce", 8192, 4)[1] != "host-staged"


LAYOUTS = [
    layout
    for phase in ("prefill", "decode")
    for layout in layouts(STEPS["deepseek-v4-flash"].facts, 8, phase, "bf16")[0]
]


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    machine=st.sampled_from([m for m in machine_names() if m.startswith("8x")]),
    more=st.floats(1.0, 8.0),
)
def test_more_of_anything_is_never_slower(layout, machine, more):
    steps, setting = STEPS["deepseek-v4-flash"], setting_of(load_machine(machine))
    phase = "decode" if layout.dp > 1 or layout.kv_shard > 1 else "prefill"
    size = StepSize(phase=phase, rows=4096, context=16384)
    if phase == "decode":
        size = StepSize(phase=phase, rows=8, context=16384, batch=8)
    base = predict_step(steps, setting, layout, size)
    for better in (
        replace(setting, exchange=setting.exchange.scaled(more)),
        replace(setting, rates=setting.rates.scaled(flops=more)),
        replace(setting, rates=setting.rates.scaled(memory=more)),
    ):
        assert predict_step(steps, better, layout, size).seconds <= base.seconds * (1 + 1e-9)
    assert base.low_s <= base.seconds <= base.high_s


@settings(max_examples=40, deadline=None)
@given(layout=st.sampled_from([x for x in LAYOUTS if x.cp == 1]), more=st.floats(1.0, 4.0))
def test_more_memory_is_never_less_context(layout, more):
    size = StepSize(phase="prefill", rows=4096, context=8192)
    found = [
        memory_use(
            STEPS["deepseek-v4-flash"],
            layout,
            layout,
            size,
            total_bytes=round(48e9 * factor),
            num_sequences=8,
        )
        for factor in (1.0, more)
    ]
    assert found[1].max_context >= found[0].max_context
    assert found[1].kv_tokens >= found[0].kv_tokens


def test_cached_rows_divide_as_published():
    """GLM on eight cards: capacity grows in proportion to the ranks that divide the cache."""
    steps = STEPS["glm-5.3"]
    size = StepSize(phase="prefill", rows=4096, context=8192)
    tokens = [
        memory_use(
            steps, TP, replace(TP, kv_shard=s), size, total_bytes=110 * 10**9, num_sequences=1
        ).kv_tokens
        for s in (1, 2, 4, 8)
    ]
    assert [t / tokens[0] for t in tokens] == pytest.approx([1, 2, 4, 8], rel=1e-3)


@pytest.mark.parametrize("machine", machine_names())
@pytest.mark.parametrize("model", MODELS)
def test_what_is_chosen_fits_and_serves_both_phases(model, machine):
    begin = time.process_time()
    found = plan_of(model, machine, prompt_tokens=16384)
    assert time.process_time() - begin < 5.0
    if isinstance(found, DoesNotFit):
        assert found.needed_bytes > found.device_bytes
        assert "What would" in str(found)
        return
    devices = load_machine(machine).num_devices
    assert found.prefill.layout.num_devices == found.decode.layout.num_devices == devices
    assert found.prefill.layout.serving(found.decode.layout) == found.prefill.layout
    assert found.memory.free_bytes > 0
    assert found.memory.max_context >= 16384 + 512
    assert found.basis.assumed
    assert all(gain >= -1e-9 for gain in found.marginal.values())


GOLDEN = {
    ("deepseek-v4-flash", "8x-l40s"): ("CP8 + AG/RS MoE", "TP8 + EP over all rows"),
    ("deepseek-v4-flash", "8x-rtxpro6000"): ("CP8 + AG/RS MoE", "TP8 + EP over all rows"),
    ("deepseek-v4-flash", "8x-rtx5090"): ("CP8 + EP", "TP8 + EP over all rows"),
    ("deepseek-v4.1-flash", "8x-a100-pcie"): ("TP8 + TP MoE", "TP8 + TP MoE"),
    ("qwen3-30b-a3b", "1x-h200"): ("one device", "one device"),
}


@pytest.mark.parametrize(("model", "machine"), GOLDEN)
def test_the_layouts_chosen_are_those_recorded(model, machine):
    found = plan_of(model, machine, prompt_tokens=32768)
    plain = [replace(p.layout, num_chunks=1) for p in (found.prefill, found.decode)]
    assert tuple(map(str, plain)) == GOLDEN[model, machine]


@pytest.mark.parametrize("model", ["deepseek-v4.1-flash", "glm-5.3"])
def test_a_model_too_large_is_refused_with_what_would_help(model):
    found = plan_of(model, "4x-rtx4090-nop2p")
    assert isinstance(found, DoesNotFit)
    assert "more devices" in str(found)


def test_longer_contexts_than_the_model_has_are_refused():
    found = plan_of("qwen3-30b-a3b", "8x-rtxpro6000", prompt_tokens=100_000)
    assert isinstance(found, DoesNotFit)
    assert "ends at 40960 tokens" in str(found)


def test_a_gain_below_the_error_is_not_taken():
    """With errors of a hundred times every cause, nothing but the simplest layout is preferred."""
    from llm_engine.plan.search.search import search

    steps, setting = STEPS["deepseek-v4-flash"], setting_of(load_machine("8x-rtxpro6000"))
    rates = setting.rates
    unsure = replace(rates, errors=rates.errors * 100)
    work = Workload(prompt_tokens=16384)
    sure = search(steps, setting, work, is_cpu=False)
    found = search(steps, replace(setting, rates=unsure), work, is_cpu=False)
    before = sure.prefill.layout.complexity + sure.decode.layout.complexity
    after = found.prefill.layout.complexity + found.decode.layout.complexity
    assert after < before
    assert "less than the error" in found.notes[0]


@pytest.mark.parametrize("bad", [{"goal": "cheap"}, {"prompt_tokens": 0}, {"num_clients": -1}])
def test_workloads_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Workload(**bad)


def test_goals_differ():
    context = plan_of("deepseek-v4-flash", "8x-l40s", prompt_tokens=16384, goal="context")
    ttft = plan_of("deepseek-v4-flash", "8x-l40s", prompt_tokens=16384, goal="ttft")
    assert isinstance(context, ServingPlan)
    assert context.memory.kv_tokens > ttft.memory.kv_tokens
