"""gpt-oss: experts in every layer, windows in every second one, and a sink in every head's softmax.

The blocks are those of Qwen3-MoE with biases and without norms of heads. What differs is in the
config: windows, yarn without whole pairs at its bounds, and the experts' clamped gate with a gain.
Source: OpenAI 2025, arXiv:2508.10925; Xiao et al. 2023, arXiv:2309.17453 (sinks).
"""

# N tokens of all sequences in a step, S sampled rows, H query heads, C channels, V vocabulary.

from typing import Self

import torch

from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.models.ends import Ends
from llm_engine.models.moe import SparseLayer, load_layer, run_layers
from llm_engine.weights.checkpoint import Checkpoint


class GptOssModel:
    """The weights of a gpt-oss model and its forward pass.

    `sinks` are each layer's (H,), float32: they meet the float32 sums of the softmax.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: list[SparseLayer],
        sinks: tuple[torch.Tensor, ...],
        ends: Ends,
    ) -> None:
        """Keep the weights."""
        self.config = config
        self.rotary = ends.rotary
        self.sinks = sinks
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
        sinks = tuple(
            checkpoint.take(f"model.layers.{i}.self_attn.sinks").float()
            for i in range(config.num_layers)
        )
        return cls(config, layers, sinks, ends)

    @property
    def num_parameters(self) -> int:
        """Parameters, experts at rest included, a tied embedding counted once."""
        total = self._ends.num_parameters + sum(layer.num_parameters for layer in self._layers)
        return total + sum(sink_H.numel() for sink_H in self.sinks)

    def hidden(self, step: Step, ops: ModelOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        x_NC = ops.embed(self._ends.embedding, step.token_ids_N)
        return run_layers(self._layers, x_NC, step, ops)

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        return self._ends.logits(hidden_SC, ops)
