"""Rows divided over ranks: sequences of their own (DP); keys gathered, by heads or in a ring."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from kernels.hardware.machine import load_machine
from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.candidates import layouts, overlapped
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.memory import memory_use, weight_bytes
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.search import search
from llm_engine.plan.search.serving_plan import DoesNotFit, Workload
from llm_engine.plan.search.wire import transfers
from llm_engine.plan.search.work import stage_work

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
DENSE = ModelSteps(LLAMA, PlanRequest(), "llama")
MOE = ModelSteps(preset("qwen3-30b-a3b"), PlanRequest(), "qwen3-30b-a3b")
V4 = ModelSteps(preset("deepseek-v4-flash"), PlanRequest(cache="fp8"), "deepseek-v4-flash")
CHUNK = StepSize(phase="prefill", rows=8192, context=8192)


def setting_of(name):
    machine = load_machine(name)
    return Setting(
        rates=rates_of(machine, has_fp8_math=True),
        exchange=exchange_of(machine),
        num_devices=machine.num_devices,
    )


PCIE = setting_of("8x-rtxpro6000")


def work(steps, layout, size):
    return stage_work(steps.at(size), layout, size, PCIE.rates)


def sent(steps, layout, size=CHUNK):
    """Bytes that leave a rank, of a row in a layer, for keys alone."""
    row_bytes = steps.at(size).cache_bytes_per_token
    facts = replace(steps.facts, hidden=0)
    found = transfers(facts, layout, size, row_bytes, steps.item_bytes)
    return sum(t.sent_bytes for t in found) / size.rows / steps.facts.num_layers


@pytest.mark.parametrize(
    ("ranks", "by_heads", "gathered"),
    [(2, 5120, 2048), (4, 3840, 3072), (8, 2240, 3584), (16, 1440, 3840)],
)
def test_bytes_of_keys_are_those_of_the_engines_page(ranks, by_heads, gathered):
    """docs/context-parallel.md, Llama-3.1-8B; of a first chunk a ring passes what is gathered."""
    for keys, expected in (("heads", by_heads), ("gather", gathered), ("ring", gathered)):
        assert sent(DENSE, Layout(cp=ranks, keys=keys, experts="dense")) == pytest.approx(expected)


def test_a_ring_passes_all_keys_until_queries_are_fewer_bytes():
    """Keys of the past go around with each chunk; of a long past, queries and answers do."""
    ring = Layout(cp=4, keys="ring", experts="dense")
    later = replace(CHUNK, context=3 * CHUNK.rows)
    assert sent(DENSE, ring, later) == pytest.approx(3 * sent(DENSE, ring))
    longest = [sent(DENSE, ring, replace(CHUNK, context=n * CHUNK.rows)) for n in (8, 16)]
    assert longest[0] == longest[1], "queries do not grow with the past"
    assert longest[0] == pytest.approx(4 * sent(DENSE, ring)), "equal at four chunks"
    gather = replace(ring, keys="gather")
    assert sent(DENSE, gather, later) == pytest.approx(sent(DENSE, gather))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_hides_passes_under_attention_and_no_more(ranks):
    ring = Layout(cp=ranks, keys="ring", experts="dense")
    for context in (8192, 24576):
        found = predict_step(DENSE, PCIE, ring, replace(CHUNK, context=context))
        assert 0 < found.hidden_s <= found.parts.attention * (ranks - 1) / ranks
        assert found.hidden_s <= found.parts.wire + found.parts.latency
        assert "keys go around under attention" in found.reasons[0]
    assert overlapped(ring) == (ring,), "no chunks beside it"


def test_a_ring_is_weighed_by_the_slowest_link_in_it():
    """In an island the hop; over both one flow that crosses; groups apart cross all at once."""
    links = load_machine("8x-rtxpro6000").links
    size = 1 << 30

    def rate(n, stride):
        return (n - 1) / n * size / PCIE.exchange.strided(stride).seconds("ring", size, n)

    assert rate(4, 1) == pytest.approx(links.hop_bytes_s, rel=0.01)
    assert rate(8, 1) == pytest.approx(49.6e9, rel=0.01)
    assert rate(2, 4) == pytest.approx(links.cross_socket_bytes_s, rel=0.01)
    assert rate(4, 1) > rate(8, 1) > rate(2, 4)
    inside = Layout(tp=1, cp=4, keys="ring", experts="dense")
    across = Layout(tp=4, cp=2, keys="ring", experts="dense")
    for layout, stride in ((inside, 1), (across, 4)):
        moved = transfers(DENSE.facts, layout, CHUNK, 1.0)
        assert {t.stride for t in moved if t.operation == "ring"} == {stride}


@given(stride=st.sampled_from([1, 2, 4, 8]), n=st.sampled_from([2, 4, 8]))
@settings(max_examples=20, deadline=None)
def test_ranks_further_apart_are_never_faster(stride, n):
    for name in ("8x-rtxpro6000", "8x-l40s", "8x-rtx5090"):
        exchange = exchange_of(load_machine(name))
        for operation in ("ring", "send", "all_gather"):
            near, far = (e.seconds(operation, 1e8, n) for e in (exchange, exchange.strided(stride)))
            assert far >= near * (1 - 1e-9)


def test_a_ring_holds_sequences_that_no_rank_has_room_for():
    """Each position lies on one rank: as many times the tokens as there are ranks."""
    asked = {"total_bytes": 24 * 10**9, "num_sequences": 1}
    one = Layout(cp=4, keys="gather", experts="dense")
    ring = replace(one, keys="ring")
    gathered, passed = (memory_use(DENSE, x, x, CHUNK, **asked) for x in (one, ring))
    assert passed.token_bytes == gathered.token_bytes / 4
    assert passed.kv_tokens > 3.9 * gathered.kv_tokens
    assert passed.max_context > gathered.max_context


def test_one_prompt_keeps_one_dp_rank_in_attention_and_all_in_mlps():
    whole = work(MOE, Layout(), CHUNK)
    divided = work(MOE, Layout(dp=4, experts="gather"), CHUNK)
    assert divided.attend.attention == pytest.approx(whole.attend.attention)
    assert divided.project.gemm == pytest.approx(whole.project.gemm)
    assert divided.mlp.gemm < whole.mlp.gemm / 2
    dense = [work(DENSE, Layout(dp=n, experts="dense"), CHUNK).mlp.gemm for n in (1, 4)]
    assert dense[1] == pytest.approx(dense[0] / 4)


@pytest.mark.parametrize("prompts", [1, 2, 3, 4, 6])
def test_the_fullest_dp_rank_sets_the_time(prompts):
    """Whole prompts are dealt out: of six on four ranks one has two."""
    size = replace(CHUNK, rows=8192 * prompts, batch=prompts)
    found = work(MOE, Layout(dp=4, experts="gather"), size).attend.attention
    alone = work(MOE, Layout(), CHUNK).attend.attention
    assert found == pytest.approx(alone * -(-prompts // 4))


@pytest.mark.parametrize("prompts", [1, 4])
def test_rows_of_one_rank_travel_further_than_shared_ones(prompts):
    """A ring carries all rows past each rank, but for those of its neighbour."""
    size = replace(CHUNK, batch=prompts)
    layout = Layout(dp=4, experts="gather")
    found = transfers(MOE.facts, layout, size, 0.0)
    rows_bytes = size.rows * MOE.facts.hidden * 2 * MOE.facts.num_layers
    gathered = sum(t.sent_bytes for t in found if t.operation == "all_gather")
    assert gathered == pytest.approx(rows_bytes * (1.0 if prompts == 1 else 0.75))


def test_mlps_of_dp_ranks_are_held_once():
    """Attention weights on every rank, channels of MLPs over all."""
    shape = DENSE.at(CHUNK)
    whole, dp, tp = (
        weight_bytes(shape, x, x, DENSE)
        for x in (
            Layout(experts="dense"),
            Layout(dp=4, experts="dense"),
            Layout(tp=4, experts="dense"),
        )
    )
    assert tp < dp < whole
    mlps = 32 * 3 * 4096 * 14336 * 2
    assert whole - dp == pytest.approx(0.75 * (mlps + (whole - mlps - attention_bytes())), rel=0.01)


def attention_bytes():
    return 32 * (4096 * (32 + 16) * 128 + 32 * 128 * 4096) * 2


@pytest.mark.parametrize("steps", [DENSE, MOE, V4], ids=["dense", "experts", "chosen rows"])
def test_both_are_candidates_or_refused_with_the_reason(steps):
    for phase in ("prefill", "decode"):
        kept, rejected = layouts(steps.facts, 8, phase, "bf16")
        assert any(x.dp == 8 for x in kept)
        has_ring = any(x.cp == 8 and x.keys == "ring" for x in kept)
        why = [r.reason for r in rejected if "ring" in r.layout]
        assert has_ring != bool(why)
        assert has_ring != steps.facts.has_shared_rows
        assert all("each query chooses among all cached rows" in reason for reason in why)


@pytest.mark.parametrize(
    ("prefill", "decode", "fits"),
    [
        (Layout(dp=4, experts="gather"), Layout(dp=4, experts="gather"), True),
        (Layout(dp=4, experts="gather"), Layout(tp=4, experts="reduce"), False),
        (Layout(cp=4, keys="ring", experts="dense"), Layout(tp=4, experts="dense"), False),
        (Layout(cp=4, experts="dense"), Layout(cp=4, keys="ring", experts="dense"), False),
        (Layout(cp=4, keys="heads", experts="dense"), Layout(tp=4, experts="dense"), True),
        (Layout(cp=4, keys="heads", experts="gather"), Layout(dp=4, experts="gather"), False),
        (Layout(cp=4, experts="gather"), Layout(dp=4, experts="gather"), True),
    ],
)
def test_keys_stay_where_a_prompt_leaves_them(prefill, decode, fits):
    assert (prefill.serving(decode) is not None) == fits


def test_the_plan_says_what_became_of_each_and_what_runs():
    """Both are compared, and what runs blocks where the engine has no schedule that hides."""
    work_asked = Workload(prompt_tokens=16384)
    found = search(MOE, PCIE, work_asked, is_cpu=False)
    assert not isinstance(found, DoesNotFit)
    told = [r for r in found.rejected if r.phase == "prefill"]
    assert any("DP" in r.layout and "one attends to the prompt" in r.reason for r in told)
    assert any("ring" in r.layout for r in told)
    assert found.today.text
    assert not found.today.is_plan or found.today.slower == 0.0
    through = search(MOE, PCIE, replace(work_asked, goal="throughput"), is_cpu=False)
    divided = [r for r in through.rejected if r.phase == "prefill" and "DP" in r.layout]
    assert divided
    assert not any("one attends" in r.reason for r in divided), "each rank has a prompt"


def test_a_better_phase_that_is_not_taken_says_what_goes_with_it():
    found = search(MOE, PCIE, Workload(prompt_tokens=16384), is_cpu=False)
    assert not isinstance(found, DoesNotFit)
    told = [r.reason for r in found.rejected if r.reason.startswith("a token takes")]
    better = [reason for reason in told if float(reason.split()[3]) < 1]
    assert better, "one device a replica decodes faster than eight together"
    for reason in told:
        assert ("prompts then are" in reason) == (reason in better)
