"""What a rank computes: heads that a kernel pads to, rows that every rank gathers, rates of ops."""

from dataclasses import replace

import pytest

from kernels.cost_model.rates import flat_rates
from llm_engine.plan.families import preset
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.work import stage_work

V4 = ModelSteps(preset("deepseek-v4-flash"), PlanRequest(cache="fp8"), "deepseek-v4-flash")
PREFILL = StepSize(phase="prefill", rows=4096, context=65536)
DECODE = StepSize(phase="decode", rows=64, context=65536, batch=64)
FLAT = flat_rates(100e12, 1e18, 0)


def work(layout, size=PREFILL, **rates):
    return stage_work(V4.at(size), layout, size, replace(FLAT, **rates))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_rank_with_fewer_heads_than_a_kernel_pads_to_gains_nothing(tp):
    """64 heads: attention over gathered rows alone, everything else infinitely fast."""
    only = dict.fromkeys(("dense_flops_s", "fp8_flops_s", "expert_4bit_flops_s"), 1e30)
    only |= {"fp8_indexer_flops_s": 1e30}
    whole = work(Layout(), **only, sparse_heads=64).total.attention
    cut = work(Layout(tp=tp, experts="reduce"), **only, sparse_heads=64).total.attention
    assert cut == pytest.approx(whole, rel=1e-6)
    free = work(Layout(tp=tp, experts="reduce"), **only, sparse_heads=1).total.attention
    assert free == pytest.approx(whole / tp, rel=1e-6)


def test_every_rank_of_a_sequence_gathers_the_same_rows_when_it_decodes():
    """Memory alone binds: dividing heads divides weights and queries, not the gathered rows."""
    slow = replace(FLAT, memory_bytes_s=1e9, dense_flops_s=1e30)
    attend = [
        stage_work(V4.at(DECODE), layout, DECODE, slow).attend.memory
        for layout in (Layout(), Layout(tp=8, experts="reduce"), Layout(dp=8, experts="local"))
    ]
    gathered_s = DECODE.batch * 21 * 512 * 584 / 1e9  # the sparse layers' rows alone
    assert attend[1] > gathered_s
    assert attend[2] < attend[1], "ranks that divide sequences gather their own alone"


def test_each_kind_of_work_runs_at_its_own_rate():
    """Twice the rate of a kind makes that kind, and no other, twice as fast."""
    base = work(Layout()).total
    for name, part in (
        ("sparse_flops_s", "attention"),
        ("fp8_indexer_flops_s", "attention"),
        ("expert_4bit_flops_s", "gemm"),
        ("fp8_flops_s", "gemm"),
    ):
        faster = work(Layout(), **{name: 200e12}).total
        assert getattr(faster, part) < getattr(base, part)
        other = "gemm" if part == "attention" else "attention"
        assert getattr(faster, other) == getattr(base, other)
    for unused in ("attention_flops_s", "expert_flops_s", "indexer_flops_s"):
        assert work(Layout(), **{unused: 200e12}).total == base, "no such op in this model"


def test_parts_of_a_layer_add_up_to_the_step():
    found = work(Layout(tp=4, experts="reduce"))
    parts = (found.project, found.attend, found.mlp, found.head)
    assert all(part.total_s > 0 for part in parts)
    assert sum(part.total_s for part in parts) == pytest.approx(found.total.total_s)
    assert found.mlp.attention == 0


@pytest.mark.parametrize("n", [2, 4, 8])
def test_experts_cut_by_columns_have_no_fullest_rank(n):
    """Whole experts on ranks wait for the fullest one: 1.2 times the mean at least."""
    alone = work(Layout()).mlp.gemm
    columns = work(Layout(tp=n, experts="columns")).mlp.gemm
    whole = work(Layout(tp=n, experts="reduce")).mlp.gemm
    shared = {"expert_4bit_flops_s": 1e30}  # what is no expert: router, shared expert
    rest = [
        work(Layout(tp=tp, experts=kind), **shared).mlp.gemm
        for tp, kind in ((1, "local"), (n, "columns"), (n, "reduce"))
    ]
    assert columns - rest[1] == pytest.approx((alone - rest[0]) / n, rel=1e-6)
    assert whole - rest[2] >= 1.2 * (alone - rest[0]) / n * (1 - 1e-9)
