"""Qwen3-MoE: the blocks of Qwen3, with experts in place of the MLP of most layers.

Source: Qwen Team 2025, arXiv:2505.09388.
"""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary.

from typing import Self

import torch

from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.models.ends import Ends
from llm_engine.models.moe import SparseLayer, load_layer, run_layers
from llm_engine.weights.checkpoint import Checkpoint


class Qwen3MoeModel:
    """The weights of a Qwen3-MoE model and its forward pass."""

    def __init__(self, config: ModelConfig, layers: list[SparseLayer], ends: Ends) -> None:
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
        """Take the weights layer by layer."""
        ends = Ends.load(config, checkpoint, dtype, forms)
        layers = [load_layer(config, checkpoint, i, dtype, forms) for i in range(config.num_layers)]
        return cls(config, layers, ends)

    @property
    def num_parameters(self) -> int:
        """Parameters, experts at rest included, a tied embedding counted once."""
        return self._ends.num_parameters + sum(layer.num_parameters for layer in self._layers)

    def hidden(self, step: Step, ops: ModelOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        x_NC = ops.embed(self._ends.embedding, step.token_ids_N)
        return run_layers(self._layers, x_NC, step, ops)

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        return self._ends.logits(hidden_SC, ops)
