"""Llama: pre-norm decoder with grouped-query attention, rotary embedding and SwiGLU.

Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.
"""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary.

from typing import Self

import torch

from llm_engine.layers.blocks import AttentionBlock, DecoderLayer, MlpBlock
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.linear import load_fused_linear
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.models.ends import Ends
from llm_engine.weights.checkpoint import Checkpoint


class LlamaModel:
    """The weights of a Llama model and its forward pass."""

    def __init__(self, config: ModelConfig, layers: list[DecoderLayer], ends: Ends) -> None:
        """Keep the weights."""
        self.config = config
        self.rotary = ends.rotary
        self.sinks: tuple[torch.Tensor, ...] = ()
        self._layers = layers
        self._ends = ends

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        forms: KeptForms = PLAIN,
    ) -> Self:
        """Take the weights layer by layer, fusing q, k, v and gate, up on the way."""
        ends = Ends.load(config, checkpoint, dtype, forms)
        layers = [
            DecoderLayer(
                load_attention(checkpoint, i, dtype, forms), load_mlp(checkpoint, i, dtype, forms)
            )
            for i in range(config.num_layers)
        ]
        return cls(config, layers, ends)

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied embedding counted once."""
        return self._ends.num_parameters + sum(layer.num_parameters for layer in self._layers)

    def hidden(self, step: Step, ops: ModelOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        return ops.stack(self._layers, ops.embed(self._ends.embedding, step.token_ids_N), step)

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        return self._ends.logits(hidden_SC, ops)


def load_attention(
    checkpoint: Checkpoint, index: int, dtype: torch.dtype, forms: KeptForms = PLAIN
) -> AttentionBlock:
    """The attention block of layer `index`; `q_norm` and `k_norm` where the file has them."""
    prefix = f"model.layers.{index}"
    attention = f"{prefix}.self_attn"
    qkv = [f"{attention}.{name}_proj" for name in "qkv"]
    norms: list[torch.Tensor | None] = [
        checkpoint.take(name).to(dtype) if checkpoint.has(name) else None
        for name in (f"{attention}.q_norm.weight", f"{attention}.k_norm.weight")
    ]
    return AttentionBlock(
        norm=checkpoint.take(f"{prefix}.input_layernorm.weight").to(dtype),
        qkv=load_fused_linear(checkpoint, qkv, dtype, forms),
        q_norm=norms[0],
        k_norm=norms[1],
        out=load_fused_linear(checkpoint, [f"{attention}.o_proj"], dtype, forms),
    )


def load_mlp(
    checkpoint: Checkpoint, index: int, dtype: torch.dtype, forms: KeptForms = PLAIN
) -> MlpBlock:
    """The dense MLP block of layer `index`."""
    prefix = f"model.layers.{index}"
    mlp = f"{prefix}.mlp"
    gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    return MlpBlock(
        norm=checkpoint.take(f"{prefix}.post_attention_layernorm.weight").to(dtype),
        gate_up=load_fused_linear(checkpoint, gate_up, dtype, forms),
        down=load_fused_linear(checkpoint, [f"{mlp}.down_proj"], dtype, forms),
    )
