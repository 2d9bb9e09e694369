"""Quantised weights stay packed on every rank where shares fall between their groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.ops.swiglu.cpu import swiglu
from llm_engine.layers.experts import MoeBlock, apply_experts
from llm_engine.loader import load_tokenizer
from llm_engine.model_config import ModelConfig
from llm_engine.models.moe import load_moe
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.panel_cuts import cuts_panels
from llm_engine.parallel.sharded_checkpoint import ShardedCheckpoint
from llm_engine.parallel.shares import (
    WeightShare,
    held_share,
    local_config,
    phase_share,
    stage_share,
)
from llm_engine.parallel.slices import BlockSlices
from llm_engine.weights.gguf import GgufCheckpoint
from llm_engine.weights.resolve import BUNDLED_NAME, resolve
from tests.llm_engine.weights.conftest import write_gguf

__all__ = ["write_gguf"]  # a fixture
SPARSE = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 32},
    **{"moe_intermediate_size": 128, "num_experts": 6, "num_experts_per_tok": 2},
    **{"num_key_value_heads": 4, "vocab_size": 256, "num_hidden_layers": 4},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}

ROUNDS = tuple((tuple(((31 + 7 * j) * i + j * j) % 40000 for i in range(40)),) for j in range(8))
ASKED = {"dtype": "auto", "page_size": 16, "prefill_chunk_tokens": 64, "kv_cache_bytes": 1 << 24}
COMPOSED = {"attention_block": "engine", "mlp_block": "engine"}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2", "cp2", "pp2", "dp2", "tp2->cp2", "pp2->tp2"])
def test_as_good_as_one_rank(layout: str, pair: Any, alone: Callable[..., Any]) -> None:
    """Mean error against float32 weights is at most twice that of packed weights on one rank.

    9 query heads over 3 key/value heads: the ranks have 6 and 3, over 2 and 1.
    """
    whole = first_logits(alone(BUNDLED_NAME, ROUNDS, 1, **ASKED | {"dtype": "float32"}))
    one = first_logits(alone(BUNDLED_NAME, ROUNDS, 1, **ASKED, kernels=COMPOSED))
    found = pair.generate(layout, BUNDLED_NAME, ROUNDS, 1, **ASKED)
    ours = np.concatenate([steps[0] for steps in found["logits"]])
    assert error(ours, whole) <= 2 * error(one, whole)
    assert dict(found["decisions"])["weights"] == "packed"
    assert dict(found["decisions"])["attention_block"] == "engine"
    if layout in ("cp2", "pp2", "pp2->tp2"):  # the very same products
        np.testing.assert_allclose(ours, one, atol=1e-3)


def first_logits(answers: Any) -> Any:
    return np.concatenate([logits[0].numpy() for _, logits in answers])


def error(found: Any, exact: Any) -> float:
    """Root of the mean square in standard deviations of a row, on average over rows."""
    return float(np.mean(np.sqrt(np.mean((found - exact) ** 2, axis=1)) / np.std(exact, axis=1)))


SONG = "The wheels on the bus go round and round, round and round, round and round. " * 3

# A prompt in chunks; one that goes on from it; its beginning; one token, which is only decoded.
TURNS = ((SONG,), (f"{SONG}The wheels on the bus go",), (SONG[:90],), ("the",))


@pytest.mark.slow
def test_phases_share_packed_weights(pair: Any, alone: Callable[..., Any]) -> None:
    """Over one set of panels, with keys that move in the native kernels' layout, and bit for bit.

    Stages and ranks with rows compute a prompt as one rank does; both decode as tp ranks do. What
    is decoded is as near to one rank's as packed weights are to their values: activations are
    rounded to integers, and ranks sum in another order.
    """
    asked = {**ASKED, "prefill_chunk_tokens": 24}
    tokenizer, _ = load_tokenizer(resolve(BUNDLED_NAME), frozenset())
    turns = tuple(tuple(tuple(tokenizer.encode(text)) for text in texts) for texts in TURNS)
    asked_packed = {**asked, "weights": "packed"}
    stages, rows, heads = (
        pair.generate(layout, BUNDLED_NAME, turns, 6, **asked_packed)
        for layout in ("pp2->tp2", "cp2->tp2", "tp2")
    )
    one = alone(BUNDLED_NAME, turns, 6, **asked, kernels=COMPOSED)
    assert stages["tokens"] == rows["tokens"]
    for ours, theirs in zip(stages["logits"], rows["logits"], strict=True):
        assert all(map(np.array_equal, ours, theirs))
    assert all(map(np.array_equal, stages["logits"][-1], heads["logits"][-1]))
    assert np.array_equal(stages["logits"][0][0], one[0][1][0].numpy())
    whole = first_logits(alone(BUNDLED_NAME, turns, 6, **asked | {"dtype": "float32"}))
    decoded, expected = stages["logits"][0][1], one[0][1][1].numpy()
    assert error(decoded, expected) <= 2 * error(first_logits(one), whole)
    assert stages["stats"].prefix_hit_tokens_total >= 64
    assert dict(stages["decisions"])["weights"] == "packed"


@pytest.mark.parametrize("text", ["pp2->tp2", "pp2->tp2,ep2", "tp2,pp2->tp4,ep2", "ep2"])
def test_shares_of_packed_experts_add_up(
    text: str,
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    tmp_path: Path,
) -> None:
    """As each rank decodes, in the memory that its stage's experts have."""
    path = tmp_path / "m.gguf"
    write_gguf(make_tiny("Qwen3Moe", **SPARSE), path, "Q8_0", arch="qwen3moe")
    config, layouts = (
        ModelConfig.from_mapping(GgufCheckpoint(path).config),
        PhaseLayouts.parse(text),
    )
    assert not cuts_panels(config, layouts)
    generator = torch.Generator().manual_seed(1)
    h_NC = torch.randn(9, 64, generator=generator)
    ids_Nk = torch.stack([torch.randperm(6, generator=generator)[:2] for _ in range(9)])
    chosen = (h_NC, ids_Nk, torch.rand(9, 2, generator=generator), swiglu)
    everything = phase_share(config, Layout(), 0)
    for layer in range(config.num_layers):
        whole = loaded_moe(path, config, layer, everything, None)
        expected = apply_experts(whole.experts, *chosen)
        found = torch.zeros_like(expected)
        for rank in range(layouts.num_ranks):
            held, stage = held_share(config, layouts, rank), stage_share(config, layouts, rank)
            used = phase_share(config, layouts.decode, rank)
            block = loaded_moe(path, config, layer, held, stage)
            outer = stage if stage is not None and layer in stage.layers else held
            slices = BlockSlices(outer, used, config.head_dim)
            if not slices.is_whole:
                block = slices.experts(block)
                parts = [e.down.packed_matrix for e in block.experts]
                assert not sum(part.num_bytes for part in parts)
            found += apply_experts(block.experts, *chosen, first=used.experts.start)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def loaded_moe(
    path: Path, config: ModelConfig, layer: int, held: WeightShare, stage: WeightShare | None
) -> MoeBlock:
    view = ShardedCheckpoint(GgufCheckpoint(path), config, held, stage=stage)
    local = local_config(config, held, held.heads, stage)
    assert local.moe is not None
    return load_moe(local.moe, view, layer, torch.float32)
