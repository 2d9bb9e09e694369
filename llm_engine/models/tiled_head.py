"""A model whose logits do not depend on how many rows are projected together."""

# N tokens of a step, S rows with logits, T rows of a tile, C channels, V vocabulary.

from typing import Self

import torch

from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Step
from llm_engine.layers.tiles import tiles_of
from llm_engine.model_config import ModelConfig
from llm_engine.models.base import CausalModel
from llm_engine.models.registry import model_class
from llm_engine.weights.checkpoint import Checkpoint


class TiledHead:
    """Logits in tiles of rows; see `llm_engine.models.base.CausalModel`."""

    def __init__(self, model: CausalModel) -> None:
        """Wrap a loaded model; its blocks are the business of the ops."""
        self._model = model
        self.config = model.config
        self.rotary: Rotary = model.rotary

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Self:
        """Load the architecture's own model and wrap it."""
        return cls(model_class(config.architecture).load(config, checkpoint, dtype))

    @property
    def num_parameters(self) -> int:
        """The model's own."""
        return self._model.num_parameters

    def hidden(self, step: Step, ops: ModelOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        return self._model.hidden(step, ops)

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Normalise the chosen rows and project them: float32 logits (S, V)."""
        parts = [self._model.logits(hidden_TC, ops) for hidden_TC in tiles_of(hidden_SC)]
        return torch.cat(parts)[: len(hidden_SC)]
