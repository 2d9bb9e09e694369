"""The two models that are measured: shapes of known families, random weights, no file."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters

# Ratios of Llama 3 8B: a quarter as many key heads as query heads, inner channels 2.75 times.
_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
# Ratios of Qwen3-30B-A3B where a model of this size can keep them: a quarter of the experts act
# on a token here, a sixteenth there.
_MOE: Mapping[str, Any] = {
    **_LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 6,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "rope_theta": 1000000.0,
}


@dataclass(frozen=True, slots=True)
class BenchmarkModel:
    """A name and a config; `quick` keeps two layers of it."""

    name: str
    raw: Mapping[str, Any]

    def config(self, num_layers: int | None = None) -> ModelConfig:
        """The model's sizes."""
        layers = {} if num_layers is None else {"num_hidden_layers": num_layers}
        return ModelConfig.from_mapping({**self.raw, **layers})


MODELS: Mapping[str, BenchmarkModel] = {
    "llama-like": BenchmarkModel("llama-like", _LLAMA),
    "qwen3-moe-like": BenchmarkModel("qwen3-moe-like", _MOE),
}


class RandomWeights:
    """Tensors by name, each from a seed of its own: any rank makes any part alone, all alike.

    Matrices keep the size of what they multiply; norms are near 1.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        """Nothing is made yet."""
        self.config = config
        self._dtype = dtype
        self._shapes = Parameters.of(config).weights

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(torch.Size(shape).numel() for shape in self._shapes.values())

    def __call__(self, name: str) -> torch.Tensor:
        """The tensor `<name>.weight`. Raises: KeyError for one the model does not have."""
        name = f"{name}.weight"
        shape = self._shapes[name]
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        x = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            x.mul_(0.1).add_(1.0)
        elif "embed_tokens" not in name:
            x.mul_(shape[1] ** -0.5)
        return x.to(self._dtype)
