"""Plans of every preset on every machine: what is chosen, what is named, what is refused."""

from dataclasses import replace

import pytest

from kernels.errors import ImplUnavailable, StrictRefusal
from kernels.hardware.machine import load_machine, machine_names
from kernels.hardware.profile import MECHANISMS
from kernels.launch_plan import MISSING, compute_plan
from kernels.layer_groups import layer_range
from kernels.plan_formats import choose_formats
from kernels.requirements import one_of, through_triton
from kernels.spec import Implementation, OpSpec, Tier
from llm_engine.plan.families import describe, preset
from llm_engine.plan.request import PlanRequest
from workers.planning.inputs import PlanFailed, model_names
from workers.planning.plan import plan_document

COVERED = (512, 2048)


def nothing(case):
    del case
    return 0.0


def spec_covering(sizes, name="sparse_mla"):
    """A sparse attention whose fused kernel has a fixed list of top-k sizes."""
    return OpSpec(
        name=name,
        summary="",
        reference="nowhere:reference",
        example="nowhere:example",
        implementations=(
            Implementation(
                name="triton",
                tier=Tier.FUSED,
                entry="nowhere.triton_kernel:run",
                requires=(through_triton(), one_of("K", sizes, "tiles are made for these")),
            ),
            Implementation(name="torch", tier=Tier.GENERIC, entry="nowhere:reference"),
        ),
        read_write_bytes=nothing,
        flops=nothing,
        cases=(),
    )


def plan_with(lookup, raw, machine="8x-rtxpro6000", **options):
    shape = describe(raw, PlanRequest(), name="model")
    return compute_plan(shape, load_machine(machine), versions={}, lookup=lookup, **options)


@pytest.mark.parametrize("machine", machine_names())
@pytest.mark.parametrize("model", model_names())
def test_every_preset_has_a_plan_on_every_machine(plan_of, model, machine):
    plan = plan_of(model, machine)
    assert plan.uses
    assert 0.0 <= plan.no_fallback_score <= 1.0
    assert len(plan.hash) == 64
    assert {use.phase for use in plan.uses} == {phase.name for phase in plan.model.phases}
    assert all(d.rejected or d.reasons for d in plan.decisions.below(Tier.FUSED))


def test_an_op_without_a_kernel_is_named(plan_of):
    plan = plan_of("deepseek-v4-flash", "8x-rtxpro6000")
    missing = {d.what: d for d in plan.missing}
    assert "hyper_connections" in missing
    decision = missing["hyper_connections"]
    assert (decision.chosen, decision.tier) == (MISSING, Tier.GENERIC)
    assert "comes with the model family" in decision.reasons[0]


def test_plain_projections_are_the_vendors(plan_of):
    plan = plan_of("smollm2-135m-instruct", "laptop-cpu")
    chosen = {(u.decision.chosen, u.decision.tier) for u in plan.uses if u.use.op == "gemm"}
    assert chosen == {("torch", Tier.VENDOR)}


def test_a_shape_outside_the_coverage_is_found_before_weights_are_read():
    raw = preset("glm-5.3") | {"index_topk": 1152}
    assert raw["num_attention_heads"] == 64
    plan = plan_with(lambda name: spec_covering(COVERED) if name == "sparse_mla" else None, raw)
    found = plan.uncovered
    assert {d.what for d in found} == {"sparse_mla"}
    for decision in found:
        assert "H=64" in decision.case
        assert "K=1152" in decision.case
        assert "K=1152 is not covered (512, 2048)" in decision.rejected[0].reasons[0]
    with pytest.raises(StrictRefusal, match=r"K=1152 is not covered \(512, 2048\)"):
        plan.require(Tier.FUSED)


def test_the_registered_kernels_answer_for_that_shape_too(plan_of):
    raw = preset("glm-5.3") | {"index_topk": 1152}
    shape = describe(raw, PlanRequest(), name="glm")
    plan = compute_plan(shape, load_machine("8x-rtxpro6000"), versions={})
    decisions = {u.decision for u in plan.uses if u.use.op == "sparse_mla"}
    assert decisions
    for decision in decisions:
        assert "K=1152" in decision.case
        is_named = bool(decision.rejected or decision.reasons)
        assert decision.tier.reaches(Tier.FUSED) or is_named


def test_a_covered_shape_is_not_named():
    lookup = {"sparse_mla": spec_covering(COVERED)}.get
    assert not plan_with(lookup, preset("glm-5.3")).uncovered


def test_an_explicit_kernel_that_cannot_serve_is_an_error():
    raw = preset("glm-5.3") | {"index_topk": 1152}
    lookup = {"sparse_mla": spec_covering(COVERED)}.get
    with pytest.raises(ImplUnavailable, match="K=1152 is not covered"):
        plan_with(lookup, raw, asked={"sparse_mla": "triton"})


def without_peers(machine):
    return replace(machine, links=replace(machine.links, p2p="no", source="peer access is off"))


def transport(plan):
    (decision,) = [d for d in plan.decisions if d.kind == "collective" and d.what == "transport"]
    return decision


def test_without_peer_access_the_plan_differs_and_says_why():
    machine = load_machine("8x-l40s")
    shape = describe(preset("qwen3-30b-a3b"), PlanRequest(), name="qwen")
    with_peers = compute_plan(shape, machine, versions={})
    staged = compute_plan(shape, without_peers(machine), versions={})
    assert with_peers.hash != staged.hash
    assert transport(with_peers).chosen == "peer copies"
    decision = transport(staged)
    assert decision.chosen == "host-staged"
    assert "no peer access" in decision.reasons[0]
    assert decision.rejected[0].candidate == "peer copies"
    assert "peer access is off" in decision.rejected[0].reasons[0]
    assert decision.evidence.startswith("unverified")


def test_layers_are_planned_whole_and_the_plan_says_so(plan_of):
    plan = plan_of("qwen3-30b-a3b", "8x-l40s")
    (layout,) = [d for d in plan.decisions if d.kind == "layout"]
    assert layout.chosen == "whole layers"
    assert "no device shares" in layout.reasons[0]


def test_every_family_of_a_mixed_machine_has_its_own_decisions():
    machine, other = load_machine("8x-rtx5090"), load_machine("8x-hygon")
    mixed = replace(machine, devices=(*machine.devices, *other.devices))
    shape = describe(preset("qwen3-0.6b"), PlanRequest(), name="qwen")
    plan = compute_plan(shape, mixed, versions={})
    assert {use.device for use in plan.uses} == {"sm_120", "hygon_dcu"}
    assert all(use.decision.where.endswith(f" on {use.device}") for use in plan.uses)
    assert {score.device for score in plan.scores} == {"sm_120", "hygon_dcu"}


def test_one_device_needs_no_transport(plan_of):
    plan = plan_of("qwen3-0.6b", "1x-h200")
    assert not [d for d in plan.decisions if d.what == "transport"]


@pytest.mark.parametrize("machine", ["8x-hygon", "8x-ascend910b"])
def test_other_vendors_get_sparse_attention_explicitly_and_mechanisms_off(plan_of, machine):
    plan = plan_of("deepseek-v4-flash", machine)
    decisions = list(plan.decisions)
    (sparse,) = [d for d in decisions if d.what == "sparse attention"]
    assert sparse.source == "explicit"
    assert sparse.reasons[0].startswith("must be asked for")
    assert sparse.rejected[0].candidate == "dense attention"
    off = {d.what: d for d in decisions if d.what in MECHANISMS and d.chosen == "off"}
    assert set(off) == set(MECHANISMS)
    assert all(d.reasons[0] for d in off.values())


def test_nvidia_needs_no_switch(plan_of):
    plan = plan_of("deepseek-v4-flash", "8x-rtxpro6000")
    (sparse,) = [d for d in plan.decisions if d.what == "sparse attention"]
    assert (sparse.source, sparse.chosen) == ("default", "on")


def test_a_dense_model_says_nothing_of_sparse_attention(plan_of):
    plan = plan_of("qwen3-0.6b", "8x-hygon")
    assert not [d for d in plan.decisions if d.what == "sparse attention"]


def test_cached_rows_are_fp8_only_where_every_device_holds_them():
    chosen = {
        name: choose_formats(load_machine(name), is_quantised=True).cache
        for name in ("8x-rtxpro6000", "8x-l40s", "8x-a100-pcie", "8x-hygon", "laptop-cpu")
    }
    assert chosen == {
        "8x-rtxpro6000": "fp8",
        "8x-l40s": "fp8",
        "8x-a100-pcie": "bf16",
        "8x-hygon": "bf16",
        "laptop-cpu": "bf16",
    }
    with pytest.raises(ValueError, match="sm_80 holds no e4m3fn rows"):
        choose_formats(load_machine("8x-a100-pcie"), is_quantised=True, asked_cache="fp8")


def test_the_hash_is_of_the_whole_plan(plan_of):
    machine = load_machine("8x-rtx5090")
    shape = describe(preset("qwen3-0.6b"), PlanRequest(), name="qwen")
    plan = compute_plan(shape, machine, versions={"torch": "1"})
    assert compute_plan(shape, machine, versions={"torch": "1"}).hash == plan.hash
    assert compute_plan(shape, machine, versions={"torch": "2"}).hash != plan.hash
    longer = describe(preset("qwen3-0.6b"), PlanRequest(context=16384), name="qwen")
    assert compute_plan(longer, machine, versions={"torch": "1"}).hash != plan.hash


def test_the_score_is_the_share_that_kernels_carry():
    lookup = {"sparse_mla": spec_covering(COVERED)}.get
    some = plan_with(lookup, preset("glm-5.3"))
    none = plan_with(lambda _: None, preset("glm-5.3"))
    assert none.no_fallback_score == 0.0
    assert 0.0 < some.no_fallback_score < 1.0
    assert {(s.phase, s.device) for s in some.scores} == {
        ("prefill", "sm_120"),
        ("decode", "sm_120"),
    }
    weights = [use.weight[0] for use in some.uses if use.phase == "prefill"]
    mine = [u.weight[0] for u in some.uses if u.phase == "prefill" and u.use.op == "sparse_mla"]
    (prefill,) = [s for s in some.scores if s.phase == "prefill"]
    assert prefill.flops == pytest.approx(sum(mine) / sum(weights), abs=1e-6)


def test_the_document_is_plain_values_with_the_hash():
    document = plan_document("smollm2-135m-instruct", "laptop-cpu")
    assert document["hash"]
    assert document["model"]["name"] == "smollm2-135m-instruct"
    assert {use["phase"] for use in document["uses"]} == {"prefill", "decode"}
    assert document["pages"][0]["page_tokens"] == 16


def test_an_unknown_model_lists_the_presets():
    with pytest.raises(PlanFailed) as refusal:
        plan_document("no-such-model")
    assert all(name in str(refusal.value) for name in model_names())


@pytest.mark.parametrize(
    ("layers", "text"),
    [((), ""), ((0, 1), "0, 1"), ((3, 4, 5), "3-5"), ((2, 4, 6), "2, 4 ... 6")],
)
def test_layer_numbers_in_words(layers, text):
    assert layer_range(layers) == text
