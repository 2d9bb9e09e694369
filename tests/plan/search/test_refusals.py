"""Why layouts are not taken, caches that prefill gathers, and what a plan's figures rest on."""

import json
from dataclasses import replace

import pytest

from kernels.calibration.table import calibration_path, save
from kernels.collectives.topology import this_topology
from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine
from kernels.table_file import short_digest
from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.memory import MemoryUse
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.refusals import does_not_fit, no_room
from llm_engine.plan.search.search import search
from llm_engine.plan.search.serving_plan import DoesNotFit, Workload
from tests.kernels.calibration.planted import planted
from workers.planning.plan import main

GLM = ModelSteps(preset("glm-5.3"), PlanRequest(cache="fp8"), "glm-5.3")


def setting_of(name):
    machine = load_machine(name)
    return Setting(
        rates=rates_of(machine, has_fp8_math=True),
        exchange=exchange_of(machine),
        num_devices=machine.num_devices,
    )


def memory(weights_gb, tokens):
    """A device of 48 GB with so many GB of weights and room for so many tokens."""
    return MemoryUse(
        total_bytes=48 * 10**9,
        weight_bytes=weights_gb * 1e9,
        workspace_bytes=1e9,
        reserved_bytes=3e9,
        token_bytes=1e5,
        kv_tokens=tokens,
        max_context=tokens,
    )


def test_the_two_causes_of_no_room_are_told_apart():
    too_heavy = no_room([memory(60, 0)], longest=8192)
    assert too_heavy.startswith("the weights do not fit: 60.0 GB and 4.0 GB beside them")
    full = no_room([memory(60, 0), memory(43.9, 1000)], longest=8192)
    assert full.startswith("no cache left: 43.9 GB of weights leave rows for 1,000 tokens")
    assert "8,192" in full
    assert "same weights" in no_room([], longest=8192)


@pytest.mark.parametrize(
    ("found", "prompt_tokens", "cause", "words"),
    [
        (memory(60, 0), 8192, "weights", "the weights do not fit"),
        (memory(43.9, 1000), 8192, "cache", "0.1 GB are left for rows of 1,000 tokens"),
        (memory(43.999, 0), 8192, "cache", "for rows of 0 tokens"),
        (memory(10, 1 << 20), 1 << 21, "length", "longer than the model allows"),
    ],
)
def test_a_model_that_does_not_fit_says_what_is_missing(found, prompt_tokens, cause, words):
    refused = does_not_fit([found], GLM, Workload(prompt_tokens=prompt_tokens))
    assert refused.cause == cause
    assert words.lower() in str(refused).lower()


@pytest.mark.parametrize(("size", "cause"), [(0.98, "cache"), (0.9, "weights")])
def test_a_little_less_memory_leaves_no_cache_and_much_less_no_weights(size, cause):
    """GLM-5.3 on eight PRO 6000 with less memory each, and a prompt of 150,000 tokens."""
    setting = setting_of("8x-rtxpro6000")
    less = replace(setting, rates=setting.rates.scaled(size=size))
    refused = search(GLM, less, Workload(prompt_tokens=150_000), is_cpu=False)
    assert isinstance(refused, DoesNotFit)
    assert refused.cause == cause
    assert (refused.free_bytes > 0) == (cause == "cache")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_prefill_gathers_what_decode_divides(ranks):
    """Every chunk reads all rows before it: (n-1)/n of each leave the ranks that keep them."""
    setting, layout = setting_of("8x-rtxpro6000"), Layout(tp=8, experts="reduce")
    size = StepSize(phase="prefill", rows=8192, context=65536)
    whole = predict_step(GLM, setting, layout, size)
    divided = predict_step(GLM, setting, replace(layout, kv_shard=ranks), size)
    earlier = (size.context - size.rows) * GLM.at(size).cache_bytes_per_token
    extra = divided.sent_bytes - whole.sent_bytes
    assert extra == pytest.approx((ranks - 1) / ranks * earlier)
    assert divided.seconds > whole.seconds
    first = replace(size, context=size.rows)
    alone = predict_step(GLM, setting, layout, first)
    again = predict_step(GLM, setting, replace(layout, kv_shard=ranks), first)
    assert again.seconds == pytest.approx(alone.seconds), "nothing is there to gather yet"


def test_a_divided_cache_is_paid_for_by_the_plan_that_has_it():
    found = search(
        GLM, setting_of("8x-rtxpro6000"), Workload(prompt_tokens=8192, goal="context"), is_cpu=False
    )
    assert not isinstance(found, DoesNotFit)
    assert found.decode.layout.kv_shard > 1
    assert found.prefill.layout.kv_shard == found.decode.layout.kv_shard


@pytest.fixture
def planned(tmp_path, capsys):
    """planned(*arguments): exit code, output and errors of the command with a data folder."""

    def run(*arguments):
        code = main(["qwen3-0.6b", "--data", str(tmp_path), *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_plan_of_this_machine_rests_on_its_calibration(planned, tmp_path):
    made, here = planted(), this_topology()
    path = save(made, calibration_path(tmp_path, here))
    layout = json.loads(planned("--json")[1])["layout"]
    assert layout["rates"]["basis"] == "calibrated"
    assert layout["rates"]["fingerprint"] == made.fingerprint
    assert f"calibrated, table {short_digest(made.fingerprint)}" in planned()[1]
    elsewhere = json.loads(planned("--machine", "laptop-cpu", "--json")[1])["layout"]
    assert elsewhere["rates"]["basis"] == "assumed"
    path.write_text(path.read_text()[:200])
    refused = json.loads(planned("--json")[1])["layout"]
    assert refused["rates"]["basis"] == "assumed"
    assert refused["calibration"].startswith("calibration refused")


def test_prompts_are_as_long_as_asked_and_waits_have_an_interval(planned):
    arguments = ("--machine", "8x-l40s", "--prompt-tokens", "3000", "--answer-tokens", "100")
    document = json.loads(planned(*arguments, "--json")[1])
    assert document["phases"][0]["context"] == 3100, "prompt and answer, where no context is given"
    load = document["layout"]["load"]
    for wait in (load["ttft_p50_s"], load["ttft_p95_s"]):
        assert wait["low"] < wait["value"] < wait["high"]
    step = document["layout"]["prefill"]
    widest = step["high_s"] / step["seconds"]
    assert load["ttft_p50_s"]["high"] / load["ttft_p50_s"]["value"] > 1 + (widest - 1) / 2
    code, _, errors = planned(*arguments, "--context", "3000")
    assert code == 2
    assert "make 3100, above --context 3000" in errors


def test_sizes_of_clips_are_not_ignored_for_a_language_model(planned):
    code, _, errors = planned("--machine", "8x-l40s", "--width", "640")
    assert code == 2
    assert "--width, --height and --frames are of clips" in errors
