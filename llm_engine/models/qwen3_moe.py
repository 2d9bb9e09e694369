"""Qwen3-MoE: the blocks of Qwen3, with experts in place of the MLP of most layers.

Source: Qwen Team 2025, arXiv:2505.09388.
"""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary.

from dataclasses import dataclass
from typing import Self

import torch

from llm_engine.layers.blocks import AttentionBlock, MlpBlock
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.embedding import Embedding
from llm_engine.layers.linear import Linear, load_fused_linear
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.models.llama import load_attention, load_mlp
from llm_engine.models.moe import MoeBlock, apply_experts, load_moe
from llm_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: AttentionBlock
    mlp: MlpBlock | MoeBlock


class Qwen3MoeModel:
    """The weights of a Qwen3-MoE model and its forward pass."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Embedding,
        layers: list[_Layer],
        final_norm_C: torch.Tensor,
        head: Linear,
        rotary: Rotary,
    ) -> None:
        """Keep the weights; a tied `head` is the embedding's."""
        self.config = config
        self.rotary = rotary
        self._embedding = embedding
        self._layers = layers
        self._final_norm_C = final_norm_C
        self._head = head

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Self:
        """Take the weights layer by layer."""
        embedding = Embedding.load(checkpoint, "model.embed_tokens", dtype)
        layers = [_load_layer(config, checkpoint, i, dtype) for i in range(config.num_layers)]
        final_norm_C = checkpoint.take("model.norm.weight").to(dtype)
        if config.is_tied:
            head = embedding.as_head()
        else:
            head = load_fused_linear(checkpoint, ["lm_head"], dtype)
        rotary = Rotary.build(config, dtype)
        return cls(config, embedding, layers, final_norm_C, head, rotary)

    @property
    def num_parameters(self) -> int:
        """Parameters, experts at rest included, a tied embedding counted once."""
        total = self._embedding.num_parameters + self._final_norm_C.numel()
        if not self.config.is_tied:
            total += self._head.num_parameters
        blocks = [block for layer in self._layers for block in (layer.attention, layer.mlp)]
        return total + sum(block.num_parameters for block in blocks)

    def hidden(self, step: Step, ops: BoundOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        x_NC = self._embedding(step.token_ids_N)
        for index, layer in enumerate(self._layers):
            x_NC = ops.attention_block(index, layer.attention, x_NC, step)
            if isinstance(layer.mlp, MoeBlock):
                x_NC = self._moe_block(layer.mlp, x_NC, ops)
            else:
                x_NC = ops.mlp_block(index, layer.mlp, x_NC, step)
        return x_NC

    def logits(self, hidden_SC: torch.Tensor, ops: BoundOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        return ops.logits(hidden_SC, self._final_norm_C, self._head, self.config.rms_eps)

    def _moe_block(self, block: MoeBlock, x_NC: torch.Tensor, ops: BoundOps) -> torch.Tensor:
        assert ops.moe_router is not None, "the ops were bound for a model without experts"
        h_NC, _, _ = ops.rms_norm(x_NC, block.norm, eps=self.config.rms_eps)
        ids_Nk, weights_Nk = ops.moe_router(block.router(h_NC), block.routing)
        return x_NC + apply_experts(block.experts, h_NC, ids_Nk, weights_Nk, ops.swiglu)


def _load_layer(
    config: ModelConfig, checkpoint: Checkpoint, index: int, dtype: torch.dtype
) -> _Layer:
    attention = load_attention(checkpoint, index, dtype)
    if config.moe is not None and config.moe.is_sparse(index):
        return _Layer(attention, load_moe(config.moe, checkpoint, index, dtype))
    return _Layer(attention, load_mlp(checkpoint, index, dtype))
