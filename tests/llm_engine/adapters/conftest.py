"""A tiny base model with LoRA adapters, and what merged weights give."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def _module(model: Any, name: str) -> torch.Tensor:
    return model.get_parameter(f"{name}.weight")


def _names(num_layers: int, modules: tuple[str, ...]) -> list[str]:
    groups = {**dict.fromkeys(ATTENTION, "self_attn"), **dict.fromkeys(MLP, "mlp")}
    layers = range(num_layers)
    return [f"model.layers.{i}.{groups[module]}.{module}" for i in layers for module in modules]


def _write(
    folder: Path, oracle: Any, modules: tuple[str, ...], *, seed: int, **settings: Any
) -> dict[str, torch.Tensor]:
    """A PEFT folder of random matrices; the weight that each adapted module has when merged."""
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(modules)}
    config |= {"bias": "none", "fan_in_fan_out": False, "modules_to_save": None, **settings}
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    merged: dict[str, torch.Tensor] = {}
    for name in _names(oracle.config.num_hidden_layers, modules):
        weight = _module(oracle, name).detach()
        rank, alpha = config["r"], config["lora_alpha"]
        for pattern, value in config.get("rank_pattern", {}).items():
            rank = value if name.endswith(pattern) else rank
        for pattern, value in config.get("alpha_pattern", {}).items():
            alpha = value if name.endswith(pattern) else alpha
        a = torch.randn(rank, weight.shape[1], generator=generator) * 0.2
        b = torch.randn(weight.shape[0], rank, generator=generator) * 0.2
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        merged[name] = (weight.double() + scale * (b.double() @ a.double())).float()
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return merged


class _Kit:
    """A tiny base model with adapters, and the tokens that merged weights give."""

    def __init__(self, oracle: Any, base: Path, adapters: dict[str, dict[str, Any]]) -> None:
        self.oracle = oracle
        self.num_steps = 12
        self.base = base
        self.merged = {
            name: _write(base / name, oracle, seed=index, **settings)
            for index, (name, settings) in enumerate(adapters.items())
        }

    def write(self, folder: Path, *modules: str) -> None:
        """Another adapter for the base model."""
        _write(folder, self.oracle, modules, seed=1)

    def engine(self, **settings: Any) -> LLMEngine:
        folders = {name: str(self.base / name) for name in self.merged}
        settings = {"page_size": 4, "prefill_chunk_tokens": 16, **settings}
        config = EngineConfig(model=str(self.base), dtype="float32", adapters=folders, **settings)
        return LLMEngine.load(config)

    @contextmanager
    def merged_oracle(self, adapter: str | None) -> Iterator[Any]:
        """The model of transformers, with an adapter merged for as long as the context lasts."""
        merged = self.merged.get(adapter or "", {})
        saved = {name: _module(self.oracle, name).detach().clone() for name in merged}
        with torch.no_grad():
            for name, weight in merged.items():
                _module(self.oracle, name).copy_(weight)
            yield self.oracle
            for name, weight in saved.items():
                _module(self.oracle, name).copy_(weight)

    def expected(self, adapter: str | None, prompt: list[int]) -> list[int]:
        """Greedy tokens under merged weights."""
        tokens = list(prompt)
        with self.merged_oracle(adapter) as oracle, torch.inference_mode():
            for _ in range(self.num_steps):
                tokens.append(int(oracle(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]


ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"modules": ATTENTION + MLP},
    "queries": {"modules": ("q_proj", "v_proj"), "r": 3, "lora_alpha": 9, "use_rslora": True},
    "patterns": {
        "modules": ("k_proj", "up_proj", "down_proj"),
        "rank_pattern": {"layers.1.self_attn.k_proj": 7, "down_proj": 2},
        "alpha_pattern": {"up_proj": 1},
    },
}


@pytest.fixture(scope="module")
def kit(
    make_tiny: Callable[..., Any],
    save_byte_tokenizer: Callable[[Path], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> _Kit:
    oracle = make_tiny()
    base = tmp_path_factory.mktemp("base")
    oracle.save_pretrained(base)
    save_byte_tokenizer(base)
    return _Kit(oracle, base, ADAPTERS)
