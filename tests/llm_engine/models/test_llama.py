"""Models of the Llama family against transformers, cut into chunks and steps in every way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.loader import load_weights
from llm_engine.models.base import CausalModel
from llm_engine.weights.safetensors import SafetensorsCheckpoint

LENGTH = 150
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN = {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 32}
PLAIN = {"rope_type": "default", "rope_theta": 1e6}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama3 rope, untied": {},
    "tied": {"tie_word_embeddings": True},
    "odd heads": {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1},
    "three kv heads": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    },
    "plain rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "dynamic rope": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
    },
    "yarn": {"rope_parameters": YARN},
    "yarn with its own attention factor": {
        "rope_parameters": YARN | {"attention_factor": 0.7, "beta_fast": 16, "truncate": False}
    },
    "yarn with mscale": {"rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.4}},
    "mistral": {"family": "Mistral", "sliding_window": None},
    "mistral within its window": {"family": "Mistral", "sliding_window": LENGTH},
    "qwen2": {"family": "Qwen2", "rope_parameters": PLAIN},
    "qwen3": {"family": "Qwen3", "rope_parameters": PLAIN},
    "qwen3 tied, biased, heads wider than the model": {
        "family": "Qwen3",
        **QWEN,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_parameters": YARN,
    },
}


def _load(model: Any, folder: Path) -> CausalModel:
    model.save_pretrained(folder)
    return load_weights(SafetensorsCheckpoint(folder), torch.float32)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [[LENGTH], [1] * 48, [3, 64, 1, 1, 60, 21]], ids=len)
def test_logits_equal_transformers(
    make_tiny: Callable[..., Any],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    variant: str,
    sizes: list[int],
) -> None:
    oracle = make_tiny(**VARIANTS[variant])
    ids = torch.randint(0, 240, (LENGTH,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = oracle(ids.unsqueeze(0)).logits[0]
    ends = torch.tensor(sizes).cumsum(0) - 1
    actual = logits_of(_load(oracle, tmp_path), ids.tolist(), sizes)
    assert (actual - expected[ends]).abs().max() <= 1e-4


def test_parameters_are_counted_once(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    for index, variant in enumerate(({}, {"tie_word_embeddings": True}, {"mlp_bias": True})):
        oracle = make_tiny(**variant)
        ours = _load(oracle, tmp_path / str(index))
        assert ours.num_parameters == oracle.num_parameters()


def test_bfloat16_error_is_that_of_transformers(
    make_tiny: Callable[..., Any], logits_of: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    oracle = make_tiny()
    oracle.save_pretrained(tmp_path)
    ids = list(range(40, 100))
    with torch.inference_mode():
        exact = oracle(torch.tensor([ids])).logits[0, -1]
        theirs = oracle.bfloat16()(torch.tensor([ids])).logits[0, -1].float()
    model = load_weights(SafetensorsCheckpoint(tmp_path), torch.bfloat16)
    ours = logits_of(model, ids, [len(ids)], dtype=torch.bfloat16)
    assert (ours[0] - exact).abs().max() <= 2 * (theirs - exact).abs().max()
