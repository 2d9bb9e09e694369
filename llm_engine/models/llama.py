"""Llama: pre-norm decoder with grouped-query attention, rotary embedding and SwiGLU.

Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.
"""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary,
# H query heads, K key/value heads, D head dim, I inner channels.

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.ops.rotary_insert import Rotation
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.linear import Linear, load_fused_linear
from llm_engine.layers.rotary import Rotary
from llm_engine.model_config import ModelConfig
from llm_engine.models.base import Attend
from llm_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """The weights of a Llama model and its forward pass."""

    def __init__(
        self,
        config: ModelConfig,
        embedding_VC: torch.Tensor,
        layers: list[_Layer],
        final_norm_C: torch.Tensor,
        head: Linear,
        rotary: Rotary,
    ) -> None:
        """Keep the weights; a tied `head` is built from the embedding."""
        self.config = config
        self._embedding_VC = embedding_VC
        self._layers = layers
        self._final_norm_C = final_norm_C
        self._head = head
        self._rotary = rotary

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Self:
        """Take the weights layer by layer, fusing q, k, v and gate, up on the way."""
        embedding_VC = checkpoint.take("model.embed_tokens.weight").to(dtype)
        layers = [_load_layer(checkpoint, i, dtype) for i in range(config.num_layers)]
        final_norm_C = checkpoint.take("model.norm.weight").to(dtype)
        head = Linear.build(embedding_VC)
        if not config.is_tied:
            head = load_fused_linear(checkpoint, ["lm_head"], dtype)
        factors = None
        if checkpoint.has("rope_freqs.weight"):
            factors = checkpoint.take("rope_freqs.weight")
        rotary = Rotary.build(config, dtype, frequency_divisors=factors)
        return cls(config, embedding_VC, layers, final_norm_C, head, rotary)

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied embedding counted once."""
        total = self._embedding_VC.numel() + self._final_norm_C.numel()
        if not self.config.is_tied:
            total += self._head.num_parameters
        for layer in self._layers:
            total += layer.attention_norm.numel() + layer.mlp_norm.numel()
            linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
            total += sum(linear.num_parameters for linear in linears)
        return total

    def hidden(
        self, token_ids_N: torch.Tensor, positions_N: torch.Tensor, attend: Attend, ops: BoundOps
    ) -> torch.Tensor:
        """Final hidden states, not normalised yet. Shapes: two (N,); result (N, C)."""
        x_NC = F.embedding(token_ids_N, self._embedding_VC)
        rotation = self._rotary.rotation(positions_N)
        eps = self.config.rms_eps
        added_NC: torch.Tensor | None = None  # what the last block adds: the next norm's residual
        for index, layer in enumerate(self._layers):
            if added_NC is None:
                h_NC, _, _ = ops.rms_norm(x_NC, layer.attention_norm, eps=eps)
            else:
                h_NC, x_NC, _ = ops.rms_norm(added_NC, layer.attention_norm, x_NC, eps=eps)
            o_NC = self._attention(index, layer, h_NC, rotation, attend)
            h_NC, x_NC, _ = ops.rms_norm(o_NC, layer.mlp_norm, x_NC, eps=eps)
            activated_NI, _ = ops.swiglu(layer.gate_up(h_NC))
            added_NC = layer.down(activated_NI)
        return x_NC if added_NC is None else x_NC + added_NC

    def logits(self, hidden_SC: torch.Tensor, ops: BoundOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        h_SC, _, _ = ops.rms_norm(hidden_SC, self._final_norm_C, eps=self.config.rms_eps)
        return self._head(h_SC).float()

    def _attention(
        self, index: int, layer: _Layer, h_NC: torch.Tensor, rotation: Rotation, attend: Attend
    ) -> torch.Tensor:
        num_heads, num_kv_heads = self.config.num_heads, self.config.num_kv_heads
        # Neighbouring views: the keys follow the queries, so that one rotation covers both.
        heads_NXD = layer.qkv(h_NC).view(-1, num_heads + 2 * num_kv_heads, self.config.head_dim)
        q_NHD, k_NKD, v_NKD = heads_NXD.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), 1)
        return layer.out(attend(index, q_NHD, k_NKD, v_NKD, rotation).flatten(1))


def _load_layer(checkpoint: Checkpoint, index: int, dtype: torch.dtype) -> _Layer:
    prefix = f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = [f"{attention}.{name}_proj" for name in "qkv"]
    return _Layer(
        attention_norm=checkpoint.take(f"{prefix}.input_layernorm.weight").to(dtype),
        qkv=load_fused_linear(checkpoint, qkv, dtype),
        out=load_fused_linear(checkpoint, [f"{attention}.o_proj"], dtype),
        mlp_norm=checkpoint.take(f"{prefix}.post_attention_layernorm.weight").to(dtype),
        gate_up=load_fused_linear(checkpoint, [f"{mlp}.gate_proj", f"{mlp}.up_proj"], dtype),
        down=load_fused_linear(checkpoint, [f"{mlp}.down_proj"], dtype),
    )
