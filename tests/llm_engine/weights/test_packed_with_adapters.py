"""An adapter over packed weights: the blocks are composed then, and add the same update."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.adapters.lora import LoraAdapter
from llm_engine.adapters.update import Update
from llm_engine.loader import load_weights
from llm_engine.weights.checkpoint import UnpackedCheckpoint
from llm_engine.weights.gguf import GgufCheckpoint

IDS = list(range(30, 70))
OUTPUTS = {"qkv": (4 + 2 + 2) * 32, "out": 64, "gate_up": 192, "down": 64}
INPUTS = {"qkv": 64, "out": 128, "gate_up": 64, "down": 96}


@pytest.mark.parametrize("sizes", [[40], [33, 1, 6]], ids=len)
def test_logits_stay_near_those_of_unpacked_weights(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    sizes: list[int],
) -> None:
    oracle = make_tiny(
        hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    write_gguf(oracle, tmp_path / "m.gguf", "Q8_0")
    generator = torch.Generator().manual_seed(5)
    updates = {
        (layer, part): Update(
            torch.randn(4, INPUTS[part], generator=generator) * 0.2,
            torch.randn(OUTPUTS[part], 4, generator=generator) * 0.2,
        )
        for layer in range(3)
        for part in OUTPUTS
    }
    adapters = AdapterSet([LoraAdapter("a", updates)])
    packed = load_weights(GgufCheckpoint(tmp_path / "m.gguf"), torch.float32)
    plain = load_weights(UnpackedCheckpoint(GgufCheckpoint(tmp_path / "m.gguf")), torch.float32)
    use = {"adapters": adapters, "adapter": "a"}
    actual = logits_of(packed, IDS, sizes, is_native=True, **use)
    expected = logits_of(plain, IDS, sizes, **use)
    without = logits_of(plain, IDS, sizes)
    assert (actual - expected).norm() <= 2e-3 * expected.norm()
    assert (expected - without).norm() > 0.1 * expected.norm()
