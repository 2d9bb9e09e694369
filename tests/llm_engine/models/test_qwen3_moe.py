"""Qwen3-MoE against transformers: routing, experts at rest, odd token counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.errors import UnsupportedModel
from llm_engine.layers.experts import MoeBlock, apply_experts
from llm_engine.loader import load_weights
from llm_engine.model_config import MoeConfig
from llm_engine.weights.safetensors import SafetensorsCheckpoint

LENGTH = 97
MOE = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "renormalised": {},
    "not renormalised": {"norm_topk_prob": False},
    "all experts": {"num_experts_per_tok": 8},
    "one expert a token": {"num_experts_per_tok": 1},
    "every second layer": {"decoder_sparse_step": 2},
    "dense layers by number": {"mlp_only_layers": [0, 2]},
    "odd heads, tied": {
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [[LENGTH], [1] * 24, [3, 41, 1, 52]], ids=len)
def test_logits_equal_transformers(
    make_tiny: Callable[..., Any],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    variant: str,
    sizes: list[int],
) -> None:
    oracle = make_tiny(**(MOE | VARIANTS[variant]))
    oracle.save_pretrained(tmp_path)
    model = load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)
    assert model.num_parameters == oracle.num_parameters()
    ids = torch.randint(0, 240, (LENGTH,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = oracle(ids.unsqueeze(0)).logits[0]
    ends = torch.tensor(sizes).cumsum(0) - 1
    assert (logits_of(model, ids.tolist(), sizes) - expected[ends]).abs().max() <= 1e-4


def test_an_expert_that_no_token_chooses_is_not_computed(
    make_tiny: Callable[..., Any], logits_of: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """Broken weights in it would show in every logit."""
    oracle = make_tiny(**(MOE | {"num_experts_per_tok": 1}))
    with torch.no_grad():
        for layer in oracle.model.layers:
            layer.mlp.gate.weight[5].zero_()
            layer.mlp.gate.weight[6].copy_(-layer.mlp.gate.weight[4])  # one of the two is above 0
            layer.mlp.experts.down_proj[5].fill_(torch.nan)
    oracle.save_pretrained(tmp_path)
    ids = list(range(60, 91))
    logits = logits_of(load_weights(SafetensorsCheckpoint(tmp_path), torch.float32), ids, [31])
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0, -1]
    assert (logits[0] - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 33])
def test_grouping_equals_one_token_after_the_other(
    make_tiny: Callable[..., Any], tmp_path: Path, num_tokens: int
) -> None:
    from kernels.ops.swiglu.reference import swiglu

    make_tiny(**MOE).save_pretrained(tmp_path)
    model: Any = load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)
    block = model._layers[0].mlp
    assert isinstance(block, MoeBlock)
    generator = torch.Generator().manual_seed(num_tokens)
    h_NC = torch.randn(num_tokens, 48, generator=generator)
    ids_Nk = torch.rand(num_tokens, 8, generator=generator).argsort(-1)[:, :3].int()
    weights_Nk = torch.rand(num_tokens, 3, generator=generator)
    grouped = apply_experts(block.experts, h_NC, ids_Nk, weights_Nk, swiglu)
    for token in range(num_tokens):
        expected = torch.zeros(48, dtype=torch.float64)
        for expert, weight in zip(ids_Nk[token], weights_Nk[token], strict=True):
            maps = block.experts[int(expert)]
            gate, up = (maps.gate_up.weight.double() @ h_NC[token].double()).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected += weight.double() * (maps.down.weight.double() @ inner)
        assert (grouped[token] - expected).abs().max() <= 1e-5


def test_more_experts_a_token_than_there_are_is_refused() -> None:
    raw = {"num_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 8}
    with pytest.raises(UnsupportedModel, match="5 experts a token, but the model has 4"):
        MoeConfig.from_mapping(raw)
