"""Batch-invariant packed weights, with experts and with adapters: the same bits in any company."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.adapters.fused_parts import fused_parts
from llm_engine.adapters.lora import LoraAdapter
from llm_engine.adapters.update import Update
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel, load_weights
from llm_engine.types import GenerationRequest, SamplingParams
from llm_engine.weights.gguf import GgufCheckpoint
from tests.llm_engine.watched_logits import assert_same_bits, served

PROMPT = tuple(range(30, 71))
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 32,
    "rope_parameters": PLAIN,
}  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}  # fmt: skip


def _request(name: str, prompt: tuple[int, ...], adapter: str | None, seed: int) -> Any:
    return GenerationRequest(
        request_id=name,
        messages=None,
        prompt_token_ids=prompt,
        params=SamplingParams(temperature=0.8, seed=seed, max_tokens=8, ignore_eos=True),
        adapter=adapter,
    )


def _adapter(config: Any) -> LoraAdapter:
    """Random updates of every map, those of experts too."""
    generator = torch.Generator().manual_seed(5)
    return LoraAdapter(
        "x",
        {
            (layer, name): Update(
                torch.randn(4, part.num_inputs, generator=generator) * 0.2,
                torch.randn(part.num_outputs, 4, generator=generator) * 0.2,
            )
            for layer in range(config.num_layers)
            for name, part in fused_parts(config, layer).items()
        },
    )


@pytest.mark.parametrize("family", ["Llama", "Qwen3Moe"])
@pytest.mark.parametrize("has_adapters", [False, True], ids=["plain", "adapters"])
def test_logits_are_bit_equal_alone_and_in_batches(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    tiny_loaded: LoadedModel,
    tmp_path: Path,
    family: str,
    has_adapters: bool,
) -> None:
    is_sparse = family == "Qwen3Moe"
    oracle = make_tiny(family, **SIZES, **(EXPERTS if is_sparse else {}))
    write_gguf(oracle, tmp_path / "m.gguf", "Q8_0", arch="qwen3moe" if is_sparse else "llama")
    model = load_weights(GgufCheckpoint(tmp_path / "m.gguf"), torch.float32)
    adapters = [_adapter(model.config)] if has_adapters else []
    loaded = replace(
        tiny_loaded,
        model=model,
        shape=model.config,
        is_packed=True,
        adapters=AdapterSet(adapters),
    )
    config = EngineConfig(
        model="tiny",
        page_size=16,
        batch_invariant=True,
        speculation="off",
        adapters={"x": "folder"} if has_adapters else {},
    )
    names = [None, "x"] if has_adapters else [None]
    others = [_request(f"o{i}", PROMPT[i:], names[i % len(names)], i) for i in range(6)]
    for name in names:
        wanted = _request("a", PROMPT, name, 5)
        alone = served(LLMEngine(loaded, config), wanted)
        engine = LLMEngine(loaded, replace(config, prefill_chunk_tokens=7))
        (mode,) = [d for d in engine.ledger if d.what == "batch_invariant"]
        assert mode.chosen == ("native parts" if has_adapters else "native")
        assert_same_bits(alone, served(engine, wanted, *others), len(PROMPT))
