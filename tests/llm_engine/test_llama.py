"""The Llama forward pass against transformers, cut into chunks and steps in every way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.kv_cache import PagePool
from llm_engine.loader import load_weights
from llm_engine.models.base import CausalModel
from llm_engine.runner import Runner
from llm_engine.scheduler import Chunk
from llm_engine.sequence import Sequence
from llm_engine.weights.safetensors import SafetensorsCheckpoint

LENGTH = 150
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
}


def _load(model: Any, folder: Path) -> CausalModel:
    model.save_pretrained(folder)
    return load_weights(SafetensorsCheckpoint(folder), torch.float32)


def _logits(model: CausalModel, ids: list[int], sizes: list[int]) -> torch.Tensor:
    """Logits at the end of each chunk, with the pages of the sequence scattered in the pool."""
    pool = PagePool(num_pages=100, page_size=4)
    pool.grow(98, 9 * 4)
    ops = decide(EngineConfig(model="tiny"), model.config, torch.float32).ops
    runner = Runner(model, pool, torch.float32, ops)
    seq = Sequence(seq_id=0, token_ids=ids, num_prompt_tokens=len(ids), max_total_tokens=400)
    rows = []
    for size in sizes:
        pool.grow(0, seq.num_computed + size)
        if seq.num_computed == 0:
            pool.release(98)
            pool.grow(99, 4)
        chunk = Chunk(seq=seq, start=seq.num_computed, num_tokens=size, is_last=True)
        rows.append(runner.run([chunk]))
        seq.num_computed += size
    return torch.cat(rows)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [[LENGTH], [1] * LENGTH, [3, 64, 1, 1, 60, 21]], ids=len)
def test_logits_equal_transformers(
    make_tiny: Callable[..., Any], tmp_path: Path, variant: str, sizes: list[int]
) -> None:
    oracle = make_tiny(**VARIANTS[variant])
    ids = torch.randint(0, 240, (LENGTH,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = oracle(ids.unsqueeze(0)).logits[0]
    ends = torch.tensor(sizes).cumsum(0) - 1
    actual = _logits(_load(oracle, tmp_path), ids.tolist(), sizes)
    assert (actual - expected[ends]).abs().max() <= 1e-4


def test_parameters_are_counted_once(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    for index, variant in enumerate(({}, {"tie_word_embeddings": True}, {"mlp_bias": True})):
        oracle = make_tiny(**variant)
        ours = _load(oracle, tmp_path / str(index))
        assert ours.num_parameters == oracle.num_parameters()


def test_bfloat16_error_is_that_of_transformers(
    make_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    oracle = make_tiny()
    oracle.save_pretrained(tmp_path)
    ids = list(range(40, 100))
    with torch.inference_mode():
        exact = oracle(torch.tensor([ids])).logits[0, -1]
        theirs = oracle.bfloat16()(torch.tensor([ids])).logits[0, -1].float()
    model = load_weights(SafetensorsCheckpoint(tmp_path), torch.bfloat16)
    pool = PagePool(num_pages=20, page_size=4)
    pool.grow(0, len(ids))
    seq = Sequence(seq_id=0, token_ids=ids, num_prompt_tokens=60, max_total_tokens=80)
    ops = decide(EngineConfig(model="tiny"), model.config, torch.bfloat16).ops
    ours = Runner(model, pool, torch.bfloat16, ops).run([Chunk(seq, 0, len(ids), is_last=True)])
    assert ours is not None
    assert (ours[0] - exact).abs().max() <= 2 * (theirs - exact).abs().max()
