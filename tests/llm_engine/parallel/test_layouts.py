"""Greedy tokens and logits over ranks equal those of one rank, for every layout and family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MOE = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": 40,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "num_hidden_layers": 4,
}
QWEN3 = {"family": "Qwen3", "tie_word_embeddings": True}
ODD = {
    "hidden_size": 72,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "intermediate_size": 77,
}
ONE_KV = {"num_key_value_heads": 1, "intermediate_size": 81}
BIASED = {"attention_bias": True, "mlp_bias": True}
MODELS = {"llama": {}, "qwen3": QWEN3, "moe": MOE, "odd": ODD, "one_kv": ONE_KV, "bias": BIASED}
DENSE_AND_MOE = tuple(MODELS)
MODELS["words"] = {"vocab_size": 288}  # nine groups of 32: halves of the vocabulary are not equal
MODELS["qwen2"] = {"family": "Qwen2"}
MODELS["gpt_oss"] = {
    "family": "GptOss",
    "intermediate_size": 40,
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "sliding_window": 10,
}
MODELS["windows"] = {
    "family": "Qwen3",
    "use_sliding_window": True,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
# One prompt alone, then several of odd lengths at once: chunks, then decoding beside chunks.
ROUNDS = (
    ([7 * i % 240 for i in range(61)],),
    tuple([(11 * i + 5 * j) % 240 for i in range(n)] for j, n in enumerate((1, 33, 2, 9))),
)

CASES = [
    *(("tp2", model) for model in DENSE_AND_MOE),
    *(("cp2", model) for model in DENSE_AND_MOE),
    *(("cp2->tp2", model) for model in DENSE_AND_MOE),
    *(("pp2", model) for model in ("llama", "qwen3", "moe", "odd")),
    *(("pp2->tp2", model) for model in DENSE_AND_MOE),
    *(("dp2", model) for model in DENSE_AND_MOE),
    ("pp2->tp2,ep2", "moe"),
    ("dp2", "words"),
    ("dp2,ep2", "moe"),
    ("dp2,ep2,a2a", "moe"),
    ("dp2,ep2,a2a->dp2,ep2", "moe"),
    ("tp2", "qwen2"),
    ("tp2", "words"),
    ("cp2->tp2", "words"),
    ("pp2->tp2", "words"),
    *((layout, "moe") for layout in ("ep2", "tp2,ep2", "cp2,ep2", "cp2,ep2,a2a", "cp2,ep2,gather")),
    ("cp2,ep2->tp2,ep2", "moe"),
    ("cp2,ep2,a2a->tp2,ep2", "moe"),
    ("cp2,gather", "llama"),
    ("tp2->cp2", "llama"),
    *((layout, "gpt_oss") for layout in ("tp2", "pp2", "dp2", "ep2", "tp2,ep2", "dp2,ep2,a2a")),
    *((layout, "windows") for layout in ("tp2", "pp2")),
]


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_two_ranks(
    layout: str,
    model: str,
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    check(pair, alone, model_folder(**MODELS[model]), layout)


def check(crew: Any, alone: Callable[..., Any], folder: Path, layout: str) -> Any:
    found = crew.generate(layout, folder, ROUNDS)
    for (tokens, logits), got, rows in zip(
        alone(folder, ROUNDS), found["tokens"], found["logits"], strict=True
    ):
        assert got == tokens
        assert len(rows) == len(logits)
        for ours, theirs in zip(rows, logits, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4, rtol=1e-5)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("tp4", "llama"),
        ("cp4", "llama"),
        ("cp4", "odd"),
        ("cp4,heads", "one_kv"),
        ("tp2,cp2", "qwen3"),
        ("tp2,cp2", "one_kv"),
        ("tp2,cp2->tp4", "llama"),
        ("tp2,cp2->tp4", "bias"),
        ("cp4->tp2,cp2", "qwen3"),
        ("tp2,pp2", "qwen3"),
        ("cp2,pp2", "moe"),
        ("cp2,pp2->tp2,pp2", "llama"),
        ("pp4", "moe"),
        ("tp4,ep2", "moe"),
        ("tp2,ep4", "moe"),
        ("tp2,cp2,ep2", "moe"),
        ("tp2,cp2,ep4->tp4,ep4", "moe"),
        ("cp2,ep4", "moe"),
        ("cp4,ep4,a2a->tp4,ep4", "moe"),
        ("ep2,pp2", "moe"),
        ("tp2,pp2->tp4", "qwen3"),
        ("tp2,pp2->tp4", "one_kv"),
        ("cp2,pp2->tp4", "bias"),
        ("pp4->tp4", "moe"),
        ("pp4->tp4,ep4", "moe"),
        ("ep2,pp2->tp4,ep4", "moe"),
        ("tp2,pp2->tp4,ep2", "moe"),
        ("cp2,ep2,a2a,pp2->tp4,ep4", "moe"),
        ("cp2,pp2->tp4,ep2", "moe"),
        ("dp2,tp2", "qwen3"),
        ("dp2,tp2", "bias"),
        ("dp2,tp2,ep4", "moe"),
        ("dp2,tp2,ep2", "moe"),
        ("dp2,cp2", "llama"),
        ("dp2,cp2", "moe"),
        ("dp2,cp2,ring", "one_kv"),
        ("dp2,cp2,gather", "bias"),
        ("dp2,cp2->dp2,tp2", "qwen3"),
        ("dp2,cp2->dp2,tp2", "odd"),
        ("dp2,cp2,ep2", "moe"),
        ("dp2,cp2,ep4,a2a->dp2,tp2,ep4", "moe"),
        ("dp4", "llama"),
        ("dp4,ep4,a2a", "moe"),
    ],
)
def test_four_ranks(
    layout: str,
    model: str,
    four: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    check(four, alone, model_folder(**MODELS[model]), layout)
