"""What stays as the files hold it, what becomes numbers, and what the ledger says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.errors import ImplUnavailable
from kernels.hardware.host_memory import MachineMemory
from kernels.hardware.traits import load_traits
from kernels.ledger import Decision
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.device import EngineDevice
from llm_engine.layers.form_choice import FormQuestion, choose_forms
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.weight_form import choose_weights
from llm_engine.memory.workspace import step_bytes
from llm_engine.model_config import ModelConfig
from llm_engine.weights.facts import StoredForm, WeightFacts

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN3_MOE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "norm_topk_prob": True,
}  # fmt: skip
GPT_OSS = DENSE | {
    "architectures": ["GptOssForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": 8,
}  # fmt: skip
FACTS = WeightFacts(
    unpacked_bytes=100 << 20,
    packed_bytes=100 << 20,
    is_quantised=False,
    stored=StoredForm(fp8_block=128, experts="fp8"),
    fp8_saved_bytes=10 << 20,
    experts_saved_bytes=30 << 20,
)


def device(family: str = "sm_120") -> EngineDevice:
    """A device that is not here, but for its family."""
    return EngineDevice(torch.device("cuda", 0), load_traits(family))


def chosen(raw: dict[str, Any], family: str = "sm_120", **more: Any) -> KeptForms:
    question = FormQuestion(
        model=ModelConfig.from_mapping(raw), dtype=torch.bfloat16, num_rows=8, device=device(family)
    )
    return choose_forms(replace(question, **more))


def said(forms: KeptForms, what: str) -> Decision:
    (decision,) = [decision for decision in forms.decisions if decision.what == what]
    return decision


def against(decision: Decision) -> str:
    return "; ".join(f"{r.candidate}: {', '.join(r.reasons)}" for r in decision.rejected)


@pytest.mark.parametrize("family", ["sm_80", "sm_90", "sm_120", "gfx942"])
def test_a_device_keeps_blocks_and_stacks_experts(family: str) -> None:
    forms = chosen(QWEN3_MOE, family, stored=FACTS.stored)
    assert forms.kept == ("matrices in FP8 blocks", "experts in fp8")
    assert forms.counts_on_device
    assert said(forms, "block_fp8_gemm").chosen == "triton_decoded"
    assert (said(forms, "moe_gemm").chosen, said(forms, "moe_gemm").tier) == ("triton", Tier.FUSED)
    assert "weights=fp8" in said(forms, "moe_gemm").case
    assert forms.weight_bytes(FACTS) == 60 << 20


def test_experts_in_numbers_are_stacked_too() -> None:
    forms = chosen(QWEN3_MOE)
    assert (forms.kept, forms.experts, forms.counts_on_device) == ((), "bf16", True)
    assert forms.moe_gemm is not None
    assert forms.weight_bytes(FACTS) == FACTS.unpacked_bytes


def test_the_gates_options_are_bound() -> None:
    forms = chosen(GPT_OSS, stored=StoredForm(experts="mxfp4"))
    decision, moe_gemm = said(forms, "moe_gemm"), forms.moe_gemm
    assert "weights=mxfp4 clamp=yes gain=yes bias=yes" in decision.case
    assert getattr(moe_gemm, "keywords", {}) == {"clamp": 7.0, "gain": 1.702, "shift": 1.0}


def test_the_cpu_decodes_blocks_and_applies_experts_one_by_one() -> None:
    forms = chosen(QWEN3_MOE, device=EngineDevice.of("cpu"), stored=FACTS.stored)
    assert (forms.fp8_gemm, forms.moe_gemm, forms.kept) == (None, None, ())
    assert {decision.chosen for decision in forms.decisions} == {"engine"}
    assert "Triton compiles nothing" in against(said(forms, "block_fp8_gemm"))


def test_float32_has_no_such_products_and_says_so() -> None:
    forms = chosen(QWEN3_MOE, stored=FACTS.stored, dtype=torch.float32)
    assert (forms.fp8_gemm, forms.moe_gemm) == (None, None)
    moe = said(forms, "moe_gemm")
    assert (moe.chosen, moe.tier) == ("engine", Tier.GENERIC)
    assert "experts in fp8: dtype fp32 is not bf16/fp16" in against(moe)
    assert "4 bytes a weight instead of one" in said(forms, "block_fp8_gemm").reasons[0]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (StoredForm(fp8_block=64), "block=64x64 is not 128x128/32x32"),
        (StoredForm(fp8_block=128, experts="fp8"), "gate and up have 96 rows, no multiple of 128"),
    ],
)
def test_blocks_that_do_not_fit_become_numbers(stored: StoredForm, reason: str) -> None:
    forms = chosen(QWEN3_MOE | {"moe_intermediate_size": 96}, stored=stored)
    assert (forms.experts, forms.moe_gemm is None) == ("bf16", False)
    assert any(reason in against(decision) for decision in forms.decisions)


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        ({"weights": "unpacked"}, ("weights is unpacked",) * 2),
        ({"dtype": "bfloat16"}, ("an explicit dtype means unpacked",) * 2),
        ({"layout": "tp2"}, ("ranks take slices of matrices", "ranks take slices of single")),
        ({"kernels": {"block_fp8_gemm": "engine", "moe_gemm": "engine"}}, ("asked for",) * 2),
    ],
    ids=str,
)
def test_a_setting_against_it_is_named(settings: dict[str, Any], reasons: tuple[str, str]) -> None:
    config = EngineConfig(model="m", device="cuda", **settings)
    model = ModelConfig.from_mapping(QWEN3_MOE)
    forms = choose_forms(FormQuestion.of_engine(config, model, torch.bfloat16, device(), FACTS))
    assert forms.kept == ()
    for decision, reason in zip(forms.decisions, reasons, strict=True):
        assert reason in against(decision), decision


def test_adapters_leave_experts_one_by_one() -> None:
    config = EngineConfig(model="m", device="cuda", adapters={"a": "folder"})
    model = ModelConfig.from_mapping(QWEN3_MOE)
    question = FormQuestion.of_engine(config, model, torch.bfloat16, device(), FACTS)
    forms = choose_forms(question)
    moe = said(forms, "moe_gemm")
    assert (forms.moe_gemm, forms.counts_on_device) == (None, False)
    assert "adapters may update single experts" in against(moe)
    assert moe.remedy == "serve merged weights"
    assert forms.kept == ("matrices in FP8 blocks",)
    with pytest.raises(ImplUnavailable, match="moe_gemm: 'triton' was asked for, but adapters may"):
        choose_forms(replace(question, asked={"moe_gemm": "triton"}))


@pytest.mark.parametrize(
    ("asked", "more", "match"),
    [
        ({"moe_gemm": "cpu"}, {}, "runs on cpu"),
        ({"moe_gemm": "triton"}, {"device": EngineDevice.of("cpu")}, "which no other reads"),
        ({"block_fp8_gemm": "triton"}, {}, "x=wide is not"),
        ({"block_fp8_gemm": "triton_decoded"}, {"against": ("weights is unpacked",)}, "unpacked"),
    ],
)
def test_a_request_is_refused_never_replaced(
    asked: dict[str, str], more: dict[str, Any], match: str
) -> None:
    with pytest.raises(ImplUnavailable, match=match):
        chosen(QWEN3_MOE, stored=FACTS.stored, asked=asked, **more)


def test_the_reference_is_met_where_it_is_asked_for() -> None:
    forms = chosen(QWEN3_MOE, asked={"moe_gemm": "torch"})
    assert forms.moe_gemm is not None
    assert not forms.counts_on_device  # it asks which experts were chosen


def test_an_engine_counts_what_it_keeps() -> None:
    config = EngineConfig(model="m", device="cuda")
    model, machine = (
        ModelConfig.from_mapping(QWEN3_MOE),
        MachineMemory(8 << 30, 6 << 30, "a device"),
    )
    decisions = decide(config, model, torch.bfloat16, facts=FACTS, machine=machine, device=device())
    by_name = {decision.what: decision for decision in decisions.ledger}
    assert by_name["weights"].chosen == "as stored"
    assert "all weights take 60 MiB, and would take 100 MiB unpacked" in by_name["weights"].reasons
    assert by_name["graphs"].chosen == "recorded graphs"
    assert decisions.ops.forms.kept == ("matrices in FP8 blocks", "experts in fp8")


def test_the_workspace_has_a_row_for_each_choice() -> None:
    """Of inner channels (128) and of the model's width (256), beside two rows of that."""
    model = ModelConfig.from_mapping(QWEN3_MOE | {"num_experts_per_tok": 6})
    assert step_bytes(model, 10, 2) == 10 * (2 * (2 * 256 + 6 * (128 + 256)) + 4 * 256)


def test_integers_with_scales_cost_what_they_cost() -> None:
    config = EngineConfig(model="m", device="cuda")
    facts = replace(FACTS, packed_bytes=30 << 20, is_quantised=True, stored=StoredForm())
    model = ModelConfig.from_mapping(DENSE)
    is_packed, decision = choose_weights(
        config, model, device(), is_quantised=True, forms=PLAIN, facts=facts
    )
    assert (is_packed, decision.chosen) == (False, "unpacked")
    assert "weights take 100 MiB there that would take 30 MiB packed" in decision.reasons[0]
