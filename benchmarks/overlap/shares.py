"""What a rank holds of a layer under tensor parallelism: heads, inner channels, experts."""

# C channels, E experts of a rank, I inner channels of a rank.

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from benchmarks.overlap.models import RandomWeights
from llm_engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `size` equal shares; of one, the whole."""

    rank: int
    size: int

    def part(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of a dim that the ranks share equally."""
        return x.chunk(self.size, dim)[self.rank].contiguous()

    def config(self, model: ModelConfig) -> ModelConfig:
        """The model's sizes as this rank computes them."""
        return replace(
            model,
            num_heads=model.num_heads // self.size,
            num_kv_heads=model.num_kv_heads // self.size,
            intermediate_size=model.intermediate_size // self.size,
        )

    def experts(self, num_experts: int) -> range:
        """The experts that this rank has, neighbours."""
        each = num_experts // self.size
        return range(self.rank * each, (self.rank + 1) * each)


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Matrices as in the files: rows are outputs."""

    norm: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class GatedWeights:
    """down(silu(gate(x)) · up(x)): an MLP, or one expert."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """A layer's second block: one gated map, or a router (E, C) and this rank's experts."""

    norm: torch.Tensor
    router: torch.Tensor | None
    gated: tuple[GatedWeights, ...]
    first_expert: int


def attention_weights(weights: RandomWeights, layer: int, share: Share) -> AttentionWeights:
    """Heads of a rank: rows of q, k and v, columns of the output."""
    prefix = f"model.layers.{layer}"
    q, k, v = (share.part(weights(f"{prefix}.self_attn.{name}_proj"), 0) for name in "qkv")
    has_norms = weights.config.has_head_norms
    return AttentionWeights(
        norm=weights(f"{prefix}.input_layernorm"),
        q=q,
        k=k,
        v=v,
        out=share.part(weights(f"{prefix}.self_attn.o_proj"), 1),
        q_norm=weights(f"{prefix}.self_attn.q_norm") if has_norms else None,
        k_norm=weights(f"{prefix}.self_attn.k_norm") if has_norms else None,
    )


def mlp_weights(weights: RandomWeights, layer: int, share: Share) -> MlpWeights:
    """Inner channels of a rank, or whole experts of it with the whole router."""
    prefix = f"model.layers.{layer}"
    norm = weights(f"{prefix}.post_attention_layernorm")
    moe = weights.config.moe
    if moe is None or not moe.is_sparse(layer):
        gate, up = (share.part(weights(f"{prefix}.mlp.{name}_proj"), 0) for name in ("gate", "up"))
        down = share.part(weights(f"{prefix}.mlp.down_proj"), 1)
        return MlpWeights(norm, None, (GatedWeights(gate, up, down),), 0)
    experts = share.experts(moe.num_experts)
    parts = ("gate_proj", "up_proj", "down_proj")
    gated = tuple(
        GatedWeights(*(weights(f"{prefix}.mlp.experts.{e}.{part}") for part in parts))
        for e in experts
    )
    return MlpWeights(norm, weights(f"{prefix}.mlp.gate"), gated, experts.start)
