"""Layers with a block of experts in place of the MLP: loading them, and running them in order."""

# N tokens of all sequences in a step, C channels.

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.ops.moe_router.routing import Routing
from llm_engine.layers.blocks import AttentionBlock, MlpBlock
from llm_engine.layers.experts import Expert, MoeBlock
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.linear import load_fused_linear
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig, MoeConfig
from llm_engine.models.grouped_experts import load_grouped
from llm_engine.models.llama import load_attention, load_mlp
from llm_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class SparseLayer:
    """A decoder layer, whose second block may be one of experts."""

    attention: AttentionBlock
    mlp: MlpBlock | MoeBlock

    @property
    def num_parameters(self) -> int:
        """Parameters of both blocks, experts at rest included."""
        return self.attention.num_parameters + self.mlp.num_parameters


def run_layers(
    layers: Sequence[SparseLayer], x_NC: torch.Tensor, step: Step, ops: ModelOps
) -> torch.Tensor:
    """All layers, one block after the other. Shapes: x and result (N, C)."""
    for index, layer in enumerate(layers):
        x_NC = ops.attention_block(index, layer.attention, x_NC, step)
        if isinstance(layer.mlp, MoeBlock):
            x_NC = ops.moe_block(index, layer.mlp, x_NC, step)
        else:
            x_NC = ops.mlp_block(index, layer.mlp, x_NC, step)
    return x_NC


def load_layer(
    config: ModelConfig,
    checkpoint: Checkpoint,
    index: int,
    dtype: torch.dtype,
    forms: KeptForms = PLAIN,
) -> SparseLayer:
    """Layer `index`, with experts or an MLP as the config says."""
    attention = load_attention(checkpoint, index, dtype, forms)
    if config.moe is not None and config.moe.is_sparse(index):
        return SparseLayer(attention, load_moe(config.moe, checkpoint, index, dtype, forms))
    return SparseLayer(attention, load_mlp(checkpoint, index, dtype, forms))


def load_moe(
    moe: MoeConfig,
    checkpoint: Checkpoint,
    index: int,
    dtype: torch.dtype,
    forms: KeptForms = PLAIN,
) -> MoeBlock:
    """The block of layer `index`: its experts stacked where one product takes them all."""
    prefix = f"model.layers.{index}"
    names = [f"{prefix}.mlp.experts.{number}" for number in range(moe.num_held(index))]
    experts: list[Expert] = []
    grouped = None
    if forms.moe_gemm is not None:
        grouped = load_grouped(checkpoint, names, dtype, forms.experts)
    else:
        experts = [load_expert(checkpoint, name, dtype, forms) for name in names]
    return MoeBlock(
        norm=checkpoint.take(f"{prefix}.post_attention_layernorm.weight").to(dtype),
        router=load_fused_linear(checkpoint, [f"{prefix}.mlp.gate"], dtype),
        experts=tuple(experts),
        routing=Routing(
            score="softmax", k=moe.num_experts_per_token, is_renormalised=moe.is_renormalised
        ),
        grouped=grouped,
    )


def load_expert(checkpoint: Checkpoint, name: str, dtype: torch.dtype, forms: KeptForms) -> Expert:
    """An expert whose maps are applied by themselves."""
    gate_up = [f"{name}.gate_proj", f"{name}.up_proj"]
    return Expert(
        gate_up=load_fused_linear(checkpoint, gate_up, dtype, forms),
        down=load_fused_linear(checkpoint, [f"{name}.down_proj"], dtype, forms),
    )
