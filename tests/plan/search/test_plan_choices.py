"""What a plan chooses and says: dense models, overlap, what runs today, published rates."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine, machine_names
from llm_engine.plan.backtest.cases import read_chains
from llm_engine.plan.backtest.evaluate import evaluate
from llm_engine.plan.backtest.table import promise_of
from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.candidates import layouts
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.serving import plan_serving
from llm_engine.plan.search.serving_plan import Workload
from llm_engine.plan.search.wire import transfers

ROOT = Path(__file__).resolve().parents[3]
PLANNING = ROOT / "docs" / "planning.md"
V4 = ModelSteps(preset("deepseek-v4-flash"), PlanRequest(cache="fp8"), "deepseek-v4-flash")
DENSE = ModelSteps(preset("qwen3-0.6b"), PlanRequest(), "qwen3-0.6b")


def setting_of(machine):
    return Setting(
        rates=rates_of(machine, has_fp8_math=True),
        exchange=exchange_of(machine),
        num_devices=machine.num_devices,
    )


def test_a_dense_model_may_divide_tokens_first_and_heads_later():
    """Weights without experts serve both: each rank that divides heads computes with its part."""
    prefills = layouts(DENSE.facts, 8, "prefill", "bf16")[0]
    decodes = layouts(DENSE.facts, 8, "decode", "bf16")[0]
    cp8 = next(x for x in prefills if x.cp == 8)
    tp8 = next(x for x in decodes if x.tp == 8)
    assert cp8.weights_key == tp8.weights_key
    assert str(cp8) == "CP8"


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_dense_layer_reduces_twice_wherever_heads_are_divided(tp):
    layout = Layout(tp=tp, cp=8 // tp, experts="dense")
    size = StepSize(phase="prefill", rows=4096, context=8192)
    found = transfers(DENSE.facts, layout, size, 0.0)
    reduced = sum(t.count for t in found if t.operation == "all_reduce")
    assert reduced == 2 * DENSE.facts.num_layers


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from([x for x in layouts(V4.facts, 8, "prefill", "bf16")[0] if x.width > 1]),
    num_chunks=st.sampled_from([2, 4]),
    machine=st.sampled_from([m for m in machine_names() if m.startswith("8x")]),
    more=st.floats(1.0, 8.0),
)
def test_overlap_never_costs_and_never_turns_gains_into_losses(layout, num_chunks, machine, more):
    """Also where transfers bind: faster devices do not end later, and nothing hides twice."""
    setting = setting_of(load_machine(machine))
    size = StepSize(phase="prefill", rows=4096, context=16384)
    cut = replace(layout, num_chunks=num_chunks)
    base = predict_step(V4, setting, cut, size)
    assert base.seconds <= predict_step(V4, setting, layout, size).seconds * (1 + 1e-9)
    covered_s = min(base.parts.wire + base.parts.latency, base.parts.total_s)
    assert 0 <= base.hidden_s <= covered_s * (1 + 1e-9)
    for better in (
        replace(setting, exchange=setting.exchange.scaled(more)),
        replace(setting, rates=setting.rates.scaled(flops=more)),
        replace(setting, rates=setting.rates.scaled(memory=more)),
    ):
        assert predict_step(V4, better, cut, size).seconds <= base.seconds * (1 + 1e-9)


def test_the_misses_that_the_docs_state_are_still_as_large():
    """Each row beyond the promise is in docs/planning.md with its error.

    Who mends one takes it out of there.
    """
    text = " ".join(PLANNING.read_text("utf-8").split())
    missed = [
        (chain, outcome)
        for chain in read_chains()
        for outcome in evaluate(chain)
        if outcome.kind == "prediction" and abs(outcome.error) > promise_of(chain)
    ]
    assert missed
    for _, outcome in missed:
        assert f"{outcome.stage.published:,.0f} ({outcome.error:+.0%})" in text, outcome.stage.label


def test_what_runs_today_is_named_with_its_price_in_time():
    raw, machine = preset("qwen3-30b-a3b"), load_machine("8x-l40s")
    found = plan_serving(raw, PlanRequest(), machine, Workload(prompt_tokens=16384), name="q")
    assert found.today.text
    assert found.today.slower >= -1e-9 or found.notes, "faster only where the error covers it"
    unknown = plan_serving(
        preset("deepseek-v4-flash"), PlanRequest(cache="fp8"), machine, Workload(), name="d"
    )
    assert unknown.today.text == ""
    assert "deepseek_v4" in unknown.today.reason


def plan_command(*arguments):
    command = [sys.executable, "-m", "workers", "plan", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_ends_with_4_where_nothing_fits():
    for model in ("glm-5.3", "minimax-h3"):
        found = plan_command(model, "--machine", "laptop-cpu")
        assert found.returncode == 4
        assert "What would: devices of" in found.stderr


def test_the_document_has_the_layouts_of_both_kinds_of_model():
    arguments = ("--machine", "8x-rtxpro6000", "--against", "1x-h200", "--price-per-hour", "10")
    for model, cost in (
        ("qwen3-30b-a3b", "cost_per_million_tokens"),
        ("minimax-h3", "cost_per_clip"),
    ):
        found = plan_command(model, "--json", *arguments)
        assert found.returncode == 0, found.stderr
        layout = json.loads(found.stdout)["layout"]
        assert layout["fits"]
        assert layout[cost] > 0
        assert layout["against"]["fits"]
        assert layout["assumed"]


def test_the_table_has_the_command_to_run():
    found = plan_command("qwen3-30b-a3b", "--machine", "8x-l40s")
    assert found.returncode == 0, found.stderr
    assert "lanewise serve --model qwen3-30b-a3b --layout" in found.stdout
    assert "over several GPUs unverified" in found.stdout


def test_a_price_is_that_of_the_requests_that_are_forecast():
    """A cache for one of eight callers: nothing is priced as if eight were served at a time."""
    found = plan_command(
        "glm-5.3", "--machine", "8x-rtxpro6000", "--prompt-tokens", "32768", "--json",
        "--price-per-hour", "8",
    )  # fmt: skip
    layout = json.loads(found.stdout)["layout"]
    tokens_s = layout["load"]["requests_per_s"] * (32768 + 512)
    assert layout["cost_per_million_tokens"] == pytest.approx(8 / 3600 / tokens_s * 1e6)
    assert layout["memory"]["kv_tokens"] < 2 * (32768 + 512)
    assert any("the cache holds 1 of 8 callers' requests" in note for note in layout["notes"])


def test_callers_of_a_pipeline_wait_for_all_of_its_stages():
    """The shortest prompts are 0.6 of the mean: nobody is faster than such a one alone."""
    raw, machine = preset("deepseek-v4-flash"), load_machine("8x-rtxpro6000")
    work = Workload(prompt_tokens=16384, goal="throughput")
    found = plan_serving(raw, PlanRequest(cache="fp8"), machine, work, name="d")
    assert found.prefill.layout.pp > 1
    assert found.load.ttft_p50_s.value > 0.6 * found.prompt.seconds
