"""Qwen3-MoE: the blocks of Qwen3, with experts in place of the MLP of most layers.

Source: Qwen Team 2025, arXiv:2505.09388.
"""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary.

from dataclasses import dataclass
from typing import Self

import torch

from llm_engine.layers.blocks import AttentionBlock, MlpBlock
from llm_engine.layers.experts import MoeBlock
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.models.ends import Ends
from llm_engine.models.llama import load_attention, load_mlp
from llm_engine.models.moe import load_moe
from llm_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: AttentionBlock
    mlp: MlpBlock | MoeBlock


class Qwen3MoeModel:
    """The weights of a Qwen3-MoE model and its forward pass."""

    def __init__(self, config: ModelConfig, layers: list[_Layer], ends: Ends) -> None:
        """Keep the weights."""
        self.config = config
        self.rotary = ends.rotary
        self._layers = layers
        self._ends = ends

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Self:
        """Take the weights layer by layer."""
        ends = Ends.load(config, checkpoint, dtype)
        layers = [_load_layer(config, checkpoint, i, dtype) for i in range(config.num_layers)]
        return cls(config, layers, ends)

    @property
    def num_parameters(self) -> int:
        """Parameters, experts at rest included, a tied embedding counted once."""
        blocks = [block for layer in self._layers for block in (layer.attention, layer.mlp)]
        return self._ends.num_parameters + sum(block.num_parameters for block in blocks)

    def hidden(self, step: Step, ops: ModelOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        x_NC = ops.embed(self._ends.embedding, step.token_ids_N)
        for index, layer in enumerate(self._layers):
            x_NC = ops.attention_block(index, layer.attention, x_NC, step)
            if isinstance(layer.mlp, MoeBlock):
                x_NC = ops.moe_block(index, layer.mlp, x_NC, step)
            else:
                x_NC = ops.mlp_block(index, layer.mlp, x_NC, step)
        return x_NC

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        return self._ends.logits(hidden_SC, ops)


def _load_layer(
    config: ModelConfig, checkpoint: Checkpoint, index: int, dtype: torch.dtype
) -> _Layer:
    attention = load_attention(checkpoint, index, dtype)
    if config.moe is not None and config.moe.is_sparse(index):
        return _Layer(attention, load_moe(config.moe, checkpoint, index, dtype))
    return _Layer(attention, load_mlp(checkpoint, index, dtype))
