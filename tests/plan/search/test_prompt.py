"""A prompt alone, and the service times that a forecast of callers is made from."""

from dataclasses import replace

import pytest

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine
from llm_engine.plan.families import preset
from llm_engine.plan.load import Load, forecast, forecast_range
from llm_engine.plan.queueing import ServiceTimes
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting
from llm_engine.plan.search.prompt import prompt_steps, prompt_time
from llm_engine.plan.search.serving import plan_serving
from llm_engine.plan.search.serving_plan import ServingPlan, Workload

V4 = ModelSteps(preset("deepseek-v4-flash"), PlanRequest(cache="fp8"), "deepseek-v4-flash")
MACHINE = load_machine("8x-l40s")
SETTING = Setting(
    rates=rates_of(MACHINE, has_fp8_math=True), exchange=exchange_of(MACHINE), num_devices=8
)
TP = Layout(tp=8, experts="reduce")


@pytest.mark.parametrize("tokens", [1, 4096, 5000, 20_480, 500_001])
def test_the_steps_of_a_prompt_are_all_its_tokens(tokens):
    found = prompt_steps(V4, SETTING, TP, 4096, tokens)
    assert sum(step.size.rows for step in found) == tokens
    assert found[-1].size.context == tokens
    assert all(step.size.rows == 4096 for step in found[:-1])


@pytest.mark.parametrize("tokens", [3000, 33 * 4096, 100 * 4096 + 17])
def test_the_time_of_a_prompt_is_that_of_its_steps(tokens):
    """Between predicted steps on a line: beyond 33 steps within a thousandth."""
    every = sum(step.seconds for step in prompt_steps(V4, SETTING, TP, 4096, tokens))
    assert prompt_time(V4, SETTING, TP, 4096, tokens).seconds == pytest.approx(every, rel=1e-3)


def test_a_pipeline_fills_once():
    layout = Layout(pp=8)
    found = prompt_steps(V4, SETTING, layout, 4096, 16_384)
    each = sum(step.seconds for step in found)
    assert prompt_time(V4, SETTING, layout, 4096, 16_384).seconds == pytest.approx(
        each + 7 * found[-1].seconds
    )


def test_a_caller_alone_waits_as_long_as_a_prompt_takes():
    """The forecast's times come from two steps; the prompt's from all of them."""
    found = plan_serving(
        preset("deepseek-v4-flash"),
        PlanRequest(cache="fp8"),
        MACHINE,
        Workload(prompt_tokens=200_000, answer_tokens=16, num_clients=1),
        name="v4",
    )
    assert isinstance(found, ServingPlan)
    assert found.load is not None
    # Prompts of the load spread by 40 % around the mean; their own mean time is a little longer.
    assert found.load.ttft_p50_s.value == pytest.approx(found.prompt.seconds, rel=0.1)
    assert found.load.ttft_p50_s.low < found.prompt.seconds < found.load.ttft_p50_s.high


def test_a_range_holds_both_ends_whichever_is_slower():
    """Callers who wait come back sooner from a faster decode, and wait longer for the prefill."""
    load = Load(prompt_tokens=32_000, answer_tokens=1000, num_clients=16)
    likely = ServiceTimes(prefill_s_per_token=1 / 6000, decode_s=0.02, kv_tokens=1e6)
    ends = [replace(likely, decode_s=seconds) for seconds in (0.005, 0.05)]
    found = forecast_range(load, ends[0], likely, ends[1])
    for end in (*ends, likely):
        waits = forecast(load, end)
        assert found.ttft_p95_s.low <= waits.ttft_p95_s.value <= found.ttft_p95_s.high
        assert found.ttft_p50_s.low <= waits.ttft_p50_s.value <= found.ttft_p50_s.high
