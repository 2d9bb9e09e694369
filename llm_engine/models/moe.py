"""Loading a block of experts in place of a layer's MLP."""

import torch

from kernels.ops.moe_router.routing import Routing
from llm_engine.layers.experts import Expert, MoeBlock
from llm_engine.layers.linear import load_fused_linear
from llm_engine.model_config import MoeConfig
from llm_engine.weights.checkpoint import Checkpoint


def load_moe(moe: MoeConfig, checkpoint: Checkpoint, index: int, dtype: torch.dtype) -> MoeBlock:
    """The block of layer `index`, one expert after the other."""
    prefix = f"model.layers.{index}"
    experts = [
        Expert(
            gate_up=load_fused_linear(checkpoint, [f"{name}.gate_proj", f"{name}.up_proj"], dtype),
            down=load_fused_linear(checkpoint, [f"{name}.down_proj"], dtype),
        )
        for name in (f"{prefix}.mlp.experts.{number}" for number in range(moe.num_experts))
    ]
    return MoeBlock(
        norm=checkpoint.take(f"{prefix}.post_attention_layernorm.weight").to(dtype),
        router=load_fused_linear(checkpoint, [f"{prefix}.mlp.gate"], dtype),
        experts=tuple(experts),
        routing=Routing(
            score="softmax", k=moe.num_experts_per_token, is_renormalised=moe.is_renormalised
        ),
    )
