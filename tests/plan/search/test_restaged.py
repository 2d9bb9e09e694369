"""Prompts in stages and answers by heads: what fits together, what is held, and what moves."""

from dataclasses import replace

import pytest

from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.memory import memory_use, weight_bytes
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.runnable import runnable
from llm_engine.plan.search.wire import transfers

DENSE = ModelSteps(preset("qwen3-0.6b"), PlanRequest(), "qwen3-0.6b")  # 8 key/value heads
MLA = ModelSteps(preset("glm-5.3"), PlanRequest(cache="fp8"), "glm-5.3")
SIZE = StepSize(phase="prefill", rows=2048, context=8192)
GB = 10**9


def stages(pp: int, tp: int = 1) -> Layout:
    return Layout(pp=pp, tp=tp, experts="dense")


def heads(tp: int) -> Layout:
    return Layout(tp=tp, experts="dense")


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (stages(2), heads(2)),
        (stages(2, 2), heads(4)),
        (Layout(pp=2, experts="local"), Layout(tp=2, experts="columns")),
    ],
)
def test_the_planner_pairs_what_the_engine_runs(prefill, decode):
    found = prefill.serving(decode)
    assert found is not None
    assert found.key_ranks == decode.tp
    assert runnable("qwen3", prefill, decode).text


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (stages(2), heads(4)),
        (heads(2), stages(2)),
        (stages(4), stages(2, 2)),
        (stages(2), Layout(cp=2, experts="dense")),
        (Layout(pp=2, experts="local"), Layout(tp=2, experts="reduce")),
        (stages(2), replace(heads(2), kv_shard=2)),
        (replace(stages(2), replicas=2), heads(2)),
    ],
)
def test_no_pair_is_made_that_it_refuses(prefill, decode):
    assert prefill.serving(decode) is None


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_rank_holds_its_stage_and_slices_of_the_rest(ranks):
    """28 layers: W / P (2 - 1/P) of the layers' bytes; matrices, but for norms, are all cut."""
    shape, decode = DENSE.at(SIZE), heads(ranks)
    prefill = stages(ranks).serving(decode)
    assert prefill is not None
    by_layer = weight_bytes(shape, heads(1), heads(1), DENSE) - weight_bytes(
        shape, stages(28), stages(28), DENSE
    )
    layers = by_layer * 28 / 27
    ends = weight_bytes(shape, heads(1), heads(1), DENSE) - layers
    held = weight_bytes(shape, prefill, decode, DENSE) - ends
    assert held == pytest.approx(layers / ranks * (2 - 1 / ranks), rel=1e-2)


def test_pages_of_prompts_are_taken_out_of_the_cache():
    """A stage of half the layers has as many bytes a token as all layers of half the heads."""
    asked = {"total_bytes": 4 * GB, "num_sequences": 1}
    plain = memory_use(DENSE, heads(2), heads(2), SIZE, **asked)
    prefill = stages(2).serving(heads(2))
    assert prefill is not None
    found = memory_use(DENSE, prefill, heads(2), SIZE, **asked)
    assert found.token_bytes == plain.token_bytes
    room = int(found.free_bytes / found.token_bytes)
    assert found.kv_tokens == pytest.approx(room - SIZE.context, abs=1)
    assert found.max_context == min(room // 2, DENSE.facts.max_context)


@pytest.mark.parametrize(("steps", "copies"), [(DENSE, 1), (MLA, 8)])
def test_new_keys_move_once_to_every_rank_that_has_their_head(steps, copies):
    """Of 8 ranks: each key leaves its stage unless it stays there, for as many as need it."""
    row_bytes = steps.at(SIZE).cache_bytes_per_token
    plain = stages(8)
    moved = [t for t in transfers(steps.facts, replace(plain, key_ranks=8), SIZE, row_bytes)]
    others = transfers(steps.facts, plain, SIZE, row_bytes)
    extra = sum(t.sent_bytes for t in moved) - sum(t.sent_bytes for t in others)
    assert extra == pytest.approx(7 / 8 * copies * SIZE.rows * row_bytes / 8)
