"""What the runner asks of a model."""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary.

from typing import Protocol, Self

import torch

from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.weights.checkpoint import Checkpoint


class CausalModel(Protocol):
    """A decoder-only language model. It holds weights and no state of any request.

    `sinks` are each layer's, float32 (H,), where the model has any.
    """

    config: ModelConfig
    rotary: Rotary
    sinks: tuple[torch.Tensor, ...]

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        forms: KeptForms = PLAIN,
    ) -> Self:
        """Take every weight from the checkpoint, once, and keep it in the form chosen for it."""
        ...

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied embedding counted once."""
        ...

    def hidden(self, step: Step, ops: ModelOps) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        ...

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Normalise the chosen rows and project them: float32 logits (S, V)."""
        ...
